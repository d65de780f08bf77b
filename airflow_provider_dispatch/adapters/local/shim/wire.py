# SPDX-License-Identifier: Apache-2.0
"""What agent and shim say to each other: one JSON object a line, both ways, over a socket pair.

Agent to shim::

    {"op": "spawn", "role", "rank", "argv", "env", "cwd", "log_dir", "memory_bytes": int | null,
     "readiness": {"command": [...]} | {"tcp_port": int} | null,
     "readiness_period_seconds": float, "readiness_timeout_seconds": float}      the last two are optional
    {"op": "end", "grace_seconds", "reason", "by"}       TERM now, KILL after the grace; again: only ever sooner
    {"op": "kill"}                                       KILL now

Shim to agent, each with ``at`` (wall clock, ISO 8601 in UTC) and, but for the last two, with ``role`` and ``rank``::

    {"event": "started", "pid"}
    {"event": "spawn_failed", "errno", "message"}
    {"event": "ready"}
    {"event": "exited", "exit_code" | "signal", "out_of_memory", "before_signal"}
    {"event": "refused", "message"}                      an order that makes no sense; nothing was done
    {"event": "gone"}                                    no process of the execution is left; the shim ends

``before_signal`` says that the exit was seen before the first signal of an ``end`` or ``kill``. End of file on the
socket means that the agent is dead: everything is killed at once and nothing is said any more.

Used by the shim and by the agent. Does no input or output itself.
"""

from __future__ import annotations

import json
import time

DEFAULT_READINESS_PERIOD_SECONDS = 1.0
DEFAULT_READINESS_TIMEOUT_SECONDS = 5.0

Message = dict[str, object]


class WireError(ValueError):
    """A message that isn't what this page describes."""


class LineBuffer:
    """Cuts what comes over a socket into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add *chunk*; the lines that are now complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line for line in lines if line]


def encode(message: Message) -> bytes:
    """A message as a line; ASCII, so that text that isn't valid Unicode survives."""
    return json.dumps(message).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """Read back one line.

    :raises WireError: if it holds no JSON object.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not an object")
    return message


def format_time(nanoseconds: int) -> str:
    """Nanoseconds since the epoch as ISO 8601 in UTC, with all nine digits."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


class SpawnOrder:
    """One ``spawn``, checked.

    :raises WireError: if a field is missing or of another type.
    """

    __slots__ = (
        "argv",
        "cwd",
        "env",
        "log_dir",
        "memory_bytes",
        "rank",
        "readiness_command",
        "readiness_period_seconds",
        "readiness_tcp_port",
        "readiness_timeout_seconds",
        "role",
    )

    def __init__(self, message: Message) -> None:
        self.role = text_of(message, "role")
        self.rank = int(number_of(message, "rank"))
        self.argv = _texts(message.get("argv"), "argv")
        self.env = _environment(message.get("env"))
        self.cwd = text_of(message, "cwd")
        self.log_dir = text_of(message, "log_dir")
        self.memory_bytes = None if message.get("memory_bytes") is None else int(number_of(message, "memory_bytes"))
        self.readiness_command, self.readiness_tcp_port = _readiness(message.get("readiness"))
        self.readiness_period_seconds = number_of(message, "readiness_period_seconds", DEFAULT_READINESS_PERIOD_SECONDS)
        self.readiness_timeout_seconds = number_of(
            message, "readiness_timeout_seconds", DEFAULT_READINESS_TIMEOUT_SECONDS
        )
        if self.rank < 0 or not self.role or "/" in self.role or "\0" in self.role:
            raise WireError(f"no name for a log file: role {self.role!r}, rank {self.rank}")


def text_of(message: Message, field: str) -> str:
    """The text in *field*."""
    value = message.get(field)
    if not isinstance(value, str):
        raise WireError(f"{field} is not a text")
    return value


def number_of(message: Message, field: str, default: float | None = None) -> float:
    """The number in *field*, or *default* where the field is missing or null."""
    value = message.get(field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"{field} is not a number")
    return value


def _texts(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise WireError(f"{field} is not a list of texts with at least one")
    return value


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise WireError("env does not map texts to texts")
    return value


def _readiness(value: object) -> tuple[list[str] | None, int | None]:
    if value is None:
        return None, None
    if isinstance(value, dict) and "command" in value:
        return _texts(value["command"], "readiness.command"), None
    if isinstance(value, dict) and "tcp_port" in value:
        return None, int(number_of(value, "tcp_port"))
    raise WireError("readiness has neither a command nor a tcp_port")
