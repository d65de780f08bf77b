# SPDX-License-Identifier: Apache-2.0
"""The running programs of one instance, by name: started, signalled, and waited for. Knows no Kubernetes.

Used by the instance alone. All processes, and what they start in turn, end with this process, however it ends: see
``airflow_provider_dispatch.testing.process_guard``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.testbed.errors import TestbedError

T = TypeVar("T")
LOG_TAIL_LINES = 25
READY_TIMEOUT_SECONDS = 180.0
"""Seconds on an idle machine; others may be at work on it too."""


@dataclass(frozen=True, slots=True)
class Component:
    """A program of the cluster.

    :param is_ready: looks, and returns at once.
    :param environment: added to a small one with nothing of the caller's.
    """

    name: str
    argv: tuple[str, ...]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)


class Supervisor:
    """:param logs: a folder, which exists; gets a file for each component."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes = GuardedProcesses(logs, grace_seconds=0.4)
        self._components: dict[str, Component] = {}
        self._pids: dict[str, int] = {}
        self._stopped: set[str] = set()

    def start(self, component: Component) -> None:
        """Start it, unless it runs. Does not wait until it is ready."""
        if self.is_running(component.name):
            return
        self._components[component.name] = component
        self._stopped.discard(component.name)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environment = inherited | dict(component.environment)
        log = self._logs / f"{component.name}.log"
        self._pids[component.name] = self._processes.start(component.argv, env=environment, log=log)

    def start_again(self, name: str) -> None:
        """Start what was stopped, with the arguments it had."""
        self.start(self._find(name))

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End it and wait for its end. KILL by default: a graceful API server waits a minute for its watches."""
        self._find(name)
        self._stopped.add(name)
        if self.is_running(name):
            self._processes.send_signal(self._pids[name], number)
            self.wait_for(lambda: not self.is_running(name), timeout_seconds=70.0, what=f"{name} to end")

    def send_signal(self, name: str, number: signal.Signals) -> None:
        self._find(name)
        self._processes.send_signal(self._pids[name], number)

    def is_running(self, name: str) -> bool:
        return name in self._pids and self._processes.exit_code(self._pids[name]) is None

    def find_ended(self) -> list[str]:
        """What ended although nobody stopped it."""
        return [name for name in self._pids if name not in self._stopped and not self.is_running(name)]

    def wait_ready(self, *names: str, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        for name in names:
            component = self._find(name)
            self.wait_for(component.is_ready, timeout_seconds=timeout_seconds, what=f"{name} to be ready", of=(name,))

    def wait_for(
        self, look: Callable[[], T | None], *, timeout_seconds: float, what: str, of: tuple[str, ...] = ()
    ) -> T:
        """Look until something true comes.

        :param of: components without which waiting is pointless.
        :raises TestbedError: with the end of a component's log, if one of them ended or took too long.
        """

        def raise_if_one_ended() -> None:
            for name in of:
                if not self.is_running(name):
                    raise TestbedError(f"{name} ended by itself:\n{self.read_tail(name)}")

        waiter = Waiter(interval_seconds=0.05, is_hopeless=raise_if_one_ended)
        try:
            return waiter.wait_for(look, timeout_seconds=timeout_seconds, what=what)
        except TimeoutError as error:
            raise TestbedError("\n".join([str(error), *(self.read_tail(name) for name in of)])) from error

    def read_tail(self, name: str) -> str:
        path = self._logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]) if path.exists() else ""

    def close(self) -> None:
        """End everything at once; there is nothing here that would have to be saved."""
        self._stopped.update(self._pids)
        for pid in reversed(self._pids.values()):
            self._processes.send_signal(pid, signal.SIGKILL)
        self._processes.close()

    def _find(self, name: str) -> Component:
        try:
            return self._components[name]
        except KeyError as error:
            raise TestbedError(f"there is no component {name}; there are {', '.join(self._components)}") from error
