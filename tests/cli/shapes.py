# SPDX-License-Identifier: Apache-2.0
"""The shape of JSON data: which keys there are, and of what type their values can be. For answers that are promised."""

from __future__ import annotations

from typing import Any

TYPES = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "nothing"}
ANY_KEYS = ("env", "labels", "secrets", "resources", "result")
"""Whose content is the user's own."""

Shape = dict[str, Any] | list[Any] | str


def read_shape(data: object) -> Shape:
    """The shape of one answer. Objects and lists keep their form, other values become the name of their type."""
    match data:
        case dict():
            return {key: "anything" if key in ANY_KEYS else read_shape(value) for key, value in sorted(data.items())}
        case list():
            shape: list[Shape] = []
            for item in data:
                shape = [merge(shape[0], read_shape(item)) if shape else read_shape(item)]
            return shape
        case _:
            return TYPES[type(data)]


def merge(one: Shape, other: Shape) -> Shape:
    """What covers both. A key that one of two objects lacks may be missing, and says so."""
    match one, other:
        case dict(), dict():
            return {key: _merge_key(key, one, other) for key in sorted({*one, *other})}
        case list(), list():
            both = [*one, *other]
            return [merge(*both)] if len(both) == 2 else both
        case str(), str():
            return " or ".join(sorted({*one.split(" or "), *other.split(" or ")})) if one != other else one
        # An object or a list that may be left out.
        case ((dict() | list()), "nothing"):
            return one
        case "nothing", (dict() | list()):
            return other
        case _:
            raise AssertionError(f"two kinds of value in one place: {one} and {other}")


def list_broken(promised: Shape, given: Shape, where: str = "") -> list[str]:
    """Where an answer gives something else than was promised. More keys than promised are fine."""
    match promised, given:
        case dict(), dict():
            gone = [f"{where}.{key} is gone" for key in promised.keys() - given.keys()]
            kept = promised.keys() & given.keys()
            return sorted(
                gone + [one for key in kept for one in list_broken(promised[key], given[key], f"{where}.{key}")]
            )
        case list(), list():
            return list_broken(promised[0], given[0], f"{where}[]") if promised and given else []
        case str(), str() if set(given.split(" or ")) <= set(promised.split(" or ")):
            return []
        case _:
            return [f"{where} was {promised} and is {given}"]


def _merge_key(key: str, one: dict[str, Any], other: dict[str, Any]) -> Shape:
    if key in one and key in other:
        return merge(one[key], other[key])
    return one.get(key) or other[key]
