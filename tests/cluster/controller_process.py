# SPDX-License-Identifier: Apache-2.0
"""The admission controller as a process beside a test run, as a Deployment would run it. Ends with its caller."""

from __future__ import annotations

import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_provider_dispatch.testing.airflow_processes import find_free_port
from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter

READY_TIMEOUT_SECONDS = 60.0


class ControllerProcess:
    """One replica.

    :param folder: for its log; exists already.
    :param flags: further ones.
    """

    def __init__(self, kubeconfig: Path, folder: Path, flags: Sequence[str] = ()) -> None:
        self.log = folder / "controller.log"
        self.port = find_free_port()
        self._folder = folder
        self._argv = [
            *(sys.executable, "-m", "airflow_provider_dispatch.controller"),
            *("--kubeconfig", str(kubeconfig), "--bind-address", "127.0.0.1"),
            *("--health-port", str(self.port), "--metrics-port", str(self.port)),
            *flags,
        ]
        self._processes: GuardedProcesses | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        self._processes = GuardedProcesses(self._folder)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._processes is not None:
            self._processes.close()

    def start(self) -> None:
        """Start it, and wait until it has seen the cluster."""
        self.pid = self._guarded.start(self._argv, env=dict(os.environ), log=self.log)
        Waiter().wait_for(self.is_ready, timeout_seconds=READY_TIMEOUT_SECONDS, what="the controller")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it and wait until it's gone."""
        self._guarded.send_signal(self.pid, number)
        Waiter().wait_for(
            lambda: self._guarded.exit_code(self.pid) is not None, timeout_seconds=30, what="the controller's end"
        )

    def is_ready(self) -> bool:
        """What its health endpoint says."""
        try:
            return self.fetch("/readyz") != ""
        except (urllib.error.URLError, OSError):
            code = self._guarded.exit_code(self.pid)
            if code is not None:
                raise RuntimeError(
                    f"the controller ended by itself ({code}):\n{self.log.read_text()[-4000:]}"
                ) from None
            return False

    def fetch(self, path: str) -> str:
        """One of its pages, such as ``/metrics``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    @property
    def _guarded(self) -> GuardedProcesses:
        if self._processes is None:
            raise RuntimeError("enter the context first")
        return self._processes
