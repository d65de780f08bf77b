# SPDX-License-Identifier: Apache-2.0
"""The file that defines a store's queues: read by callers, who refuse unknown names, and by the agent, which admits."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from airflow_provider_dispatch.adapters.local.lifecycle.intents import resolve_priority, resolve_queue
from airflow_provider_dispatch.adapters.local.lifecycle.queueing import NodeConfig
from airflow_provider_dispatch.adapters.local.scheduling.model import Node
from airflow_provider_dispatch.adapters.local.scheduling.queue_file import HIGHEST_PRIORITY, QueueFile, parse_queues
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.exceptions import SpecError

_LARGEST_BYTES = 10 * 1024 * 1024


class QueuesFile:
    """``queues.toml``; need not exist. Without queues in it, any name is one, and without limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def has_changed(self) -> bool:
        """Whether the file is another one than the last that was read."""
        return self._seen != self._identify()

    def resolve(self, spec: JobSpec) -> tuple[str, int]:
        """Queue and priority of a job.

        :raises SpecError: one of them is unknown.
        """
        if isinstance(spec.priority, int) and abs(spec.priority) > HIGHEST_PRIORITY:
            raise SpecError("priority", f"must lie within ±{HIGHEST_PRIORITY}", spec.priority)
        content = self._read(Node("", {}))
        known = {queue.name: queue for queue in content.queues} or None
        return resolve_queue(spec.queue, known), resolve_priority(spec.priority, content.priorities)

    def build_config(self, node: Node) -> NodeConfig:
        """The machine and its queues.

        :param node: with what the machine really has; the file may say otherwise.
        """
        content = self._read(node)
        return NodeConfig(
            replace(node, capacity=content.capacity),
            content.queues,
            has_open_queues=not content.queues,
            starvation_after=content.starvation_after,
        )

    def describe(self) -> str:
        """What is in it, for people."""
        names = ", ".join(queue.name for queue in self._read(Node("", {})).queues)
        return f"{names}, from {self._path}" if names else "any name is a queue without limit"

    def _read(self, node: Node) -> QueueFile:
        self._seen = self._identify()
        data: dict[str, object] = {}
        with translating("read", self._path):
            if self._seen is not None:
                if not self._path.is_file():
                    # A FIFO would keep whoever reads it waiting.
                    raise SpecError("queues.toml", "must be a file", str(self._path))
                if self._seen[2] > _LARGEST_BYTES:
                    raise SpecError("queues.toml", f"must not be larger than {_LARGEST_BYTES} bytes", self._seen[2])
                try:
                    data = tomllib.loads(self._path.read_bytes().decode())
                except (ValueError, RecursionError) as error:
                    raise SpecError("queues.toml", f"is not TOML: {error}") from None
        return parse_queues(data, default_capacity=node.capacity)

    def _identify(self) -> tuple[int, int, int] | None:
        with translating("read", self._path):
            try:
                found = self._path.stat()
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size
