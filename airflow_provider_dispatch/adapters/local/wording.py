# SPDX-License-Identifier: Apache-2.0
"""Text that comes from callers: what can't be stored as text is refused in names, and mended in prose. Pure."""

from __future__ import annotations

from airflow_provider_dispatch.exceptions import SpecError


def mend_text(text: str) -> str:
    """Prose with everything replaced that is not Unicode text."""
    return text.encode("utf-8", "replace").decode()


def check_text(value: object, field: str) -> None:
    """Refuse lone surrogates anywhere in plain data.

    :param value: texts and numbers, or a mapping of such.
    :raises SpecError: names the place.
    """
    match value:
        case str():
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise SpecError(field, "holds half of a surrogate pair, which is no text", ascii(value))
        case dict():
            for name, part in value.items():
                check_text(name, field)
                check_text(part, f"{field}.{name}")
