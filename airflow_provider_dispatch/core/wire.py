# SPDX-License-Identifier: Apache-2.0
"""The contract's values as plain JSON and back: for XComs, trigger rows, stores and annotations.

Unknown fields are ignored, so that an older reader understands a newer writer; not those of a job spec, which read in
part would be another job. pydantic does the work; it is asked for a type on first use only.
"""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from airflow_provider_dispatch.exceptions import ProtocolError

T = TypeVar("T")


_ADAPTERS: dict[type, TypeAdapter[object]] = {}


def _adapter(kind: type) -> TypeAdapter[object]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(value: object) -> dict[str, object]:
    """A dataclass of the contract as JSON data; field names are the keys."""
    plain: dict[str, object] = _adapter(type(value)).dump_python(value, mode="json")
    return plain


def load(kind: type[T], data: object) -> T:
    """The value that :func:`dump` wrote.

    :raises ProtocolError: *data* is not one; the message names the field.
    """
    try:
        return cast("T", _adapter(kind).validate_python(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise ProtocolError(f"not a {kind.__name__}: {where or 'value'}: {problem}") from None
