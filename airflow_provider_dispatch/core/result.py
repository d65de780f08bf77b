# SPDX-License-Identifier: Apache-2.0
"""What rank 0 hands back: a small JSON document. Adapters read it where the backend carries it."""

from __future__ import annotations

import json

from airflow_provider_dispatch.exceptions import ProtocolError

LARGEST_RESULT_BYTES = 4000
DEEPEST_RESULT = 64
"""Lists and mappings in one another. Whatever carries a result goes so deep; pydantic ends at 255."""
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1
"""Airflow sends what a task returns as MessagePack, which ends here."""


def parse_result(content: bytes) -> object:
    """Read the document; an empty one is no result.

    :raises ProtocolError: larger than 4,000 bytes, not JSON, or such as not everybody can carry: more than 64 lists and
        mappings in one another, an integer of more than 64 bits. The message says the size.
    """
    if len(content) > LARGEST_RESULT_BYTES:
        raise ProtocolError(f"the result has {len(content)} bytes; at most {LARGEST_RESULT_BYTES} are carried")
    if not content.strip():
        return None
    try:
        result: object = json.loads(content)
        # Python reads more than JSON is (NaN, 1e999, half a surrogate pair): whoever carries the result on would fail.
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the result of {len(content)} bytes is not JSON: {error}") from None
    if problem := _find_problem(result):
        raise ProtocolError(f"the result of {len(content)} bytes can't be carried: {problem}")
    return result


def _find_problem(result: object) -> str:
    """What JSON can say and those who carry it can't; without recursion, however deep it goes."""
    level: list[object] = [result]
    for _ in range(DEEPEST_RESULT + 1):
        if any(isinstance(one, int) and not SMALLEST_INTEGER <= one <= LARGEST_INTEGER for one in level):
            return "an integer has more than 64 bits; write it as a text"
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not inside:
            return ""
        level = [child for children in inside for child in children]
    return f"more than {DEEPEST_RESULT} lists and mappings are in one another"
