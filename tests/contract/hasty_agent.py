# SPDX-License-Identifier: Apache-2.0
"""An agent that does not wait until the old execution is gone, for the proof that the ranks would see it.

``hasty_agent.py FOLDER TELL_FD``. It is the agent itself, with two things broken: it believes an execution dead as
soon as that was asked to end, and it finds the lock of a job free whoever has it. Only a test starts it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

from airflow_provider_dispatch.adapters.local.agent.executions import Executions, Surroundings
from airflow_provider_dispatch.adapters.local.agent.runner import Agent
from airflow_provider_dispatch.adapters.local.doorbell import Doorbell
from airflow_provider_dispatch.adapters.local.launching import LISTENING
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.lifecycle.messages import ExecutionGone
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.core.identity import Identity, JobID
from airflow_provider_dispatch.core.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class UnlockedLayout(StoreLayout):
    """A new lock whenever one is asked for: it keeps nobody out."""

    numbers: count[int] = field(default_factory=count)

    def job_lock(self, job: JobID) -> Path:
        """One that nobody has."""
        return self.job_folder(job) / f"lock.{next(self.numbers)}"


class HastyExecutions(Executions):
    """Says that an execution is gone when it was only told to go."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._around = around
        self._identities: dict[Key, Identity] = {}

    def start(self, key: Key, identity: Identity, spec: JobSpec) -> None:
        """As always."""
        self._identities[key] = identity
        super().start(key, identity, spec)

    def end(self, key: Key, reason: str, grace: timedelta) -> None:
        """Ask, and don't wait."""
        super().end(key, reason, grace)
        self._around.post(ExecutionGone(key, self._identities[key]))


class HastyAgent(Agent):
    """The node, in a hurry."""

    def __init__(self, database: Database, doorbell: Doorbell) -> None:
        super().__init__(database, doorbell, retire_after=timedelta(minutes=5), pass_env=())
        self._executions = HastyExecutions(self._executions._around)


def main(folder: str, tell_fd: str) -> None:
    """Serve the store until somebody kills this process."""
    layout = UnlockedLayout(Path(folder))
    doorbell = Doorbell.take(layout, patience_seconds=3.0)
    assert doorbell is not None
    agent = HastyAgent(Database(layout), doorbell)
    agent.take_over()
    os.write(int(tell_fd), LISTENING)
    agent.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
