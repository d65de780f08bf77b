# SPDX-License-Identifier: Apache-2.0
"""What rank 0 hands back: a small JSON document. Adapters read it where the backend carries it."""

from __future__ import annotations

import json

from airflow_provider_dispatch.exceptions import ProtocolError

LARGEST_RESULT_BYTES = 4000


def parse_result(content: bytes) -> object:
    """Read the document; an empty one is no result.

    :raises ProtocolError: larger than 4,000 bytes, or not JSON; the message says the size.
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
    return result
