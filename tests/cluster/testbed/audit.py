# SPDX-License-Identifier: Apache-2.0
"""Reads what was asked of the API server from its audit log, for tests that count requests. Writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request, however many lines the log has about it.

    :param resource: plural, with the subresource: ``pods/log``; empty for paths that are no resource.
    :param status: of HTTP; 0 while a watch goes on.
    """

    audit_id: str
    user: str
    user_agent: str
    verb: str
    resource: str
    namespace: str
    name: str
    uri: str
    status: int


def read_requests(log: Path, *, since: int = 0) -> Iterator[Request]:
    """The requests whose first line stands at or after the byte *since*. A watch counts when it begins.

    The log may be written to meanwhile; an unfinished last line is left for the next time.
    """
    seen: set[str] = set()
    if not log.exists():
        return
    with log.open("rb") as lines:
        lines.seek(since)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            event = json.loads(line)
            if event["auditID"] not in seen:
                seen.add(event["auditID"])
                # The end of a watch that had begun before: its beginning was counted there.
                if since == 0 or not (event["verb"] == "watch" and event["stage"] == "ResponseComplete"):
                    yield _parse_request(event)


def _parse_request(event: dict[str, Any]) -> Request:
    target = event.get("objectRef", {})
    is_over = event["stage"] == "ResponseComplete"
    return Request(
        audit_id=event["auditID"],
        user=event["user"].get("username", ""),
        user_agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource="/".join(filter(None, [target.get("resource"), target.get("subresource")])),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        uri=event["requestURI"],
        status=event.get("responseStatus", {}).get("code", 0) if is_over else 0,
    )
