# SPDX-License-Identifier: Apache-2.0
"""Settings that somebody wrote, read by a pydantic model: a wrong one is a :class:`SpecError` that names the field.

The adapters' settings and the controller's configuration come through here. The value is never shown: it may be secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from airflow_provider_dispatch.exceptions import SpecError

Settings = TypeVar("Settings", bound=BaseModel)


def validate_settings(kind: type[Settings], fields: Mapping[str, object], *, whole: str = "settings") -> Settings:
    """The settings that *fields* are.

    :param whole: what an error names that is about several fields at once.
    :raises SpecError: an unknown field or a wrong value; names the first.
    """
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SpecError(where or whole, first["msg"].removeprefix("Value error, ")) from None


def describe_place(error: Exception) -> str:
    """Where a parser of YAML gave up: `` in line 3, column 5``, or nothing. Its own words show what stands there."""
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
