# SPDX-License-Identifier: Apache-2.0
"""Where everything of a store lies on the disk. Everybody who needs a path asks here; nothing is touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_dispatch.core.identity import Identity, JobID


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The folder of one store.

    ::

        store.db      what is wanted and what is
        queues.toml   queues and priorities, if a user wrote any
        secrets/      <name>/<key>: values that jobs name, if a user wrote any
        wake          FIFO that the agent listens on
        agent.lock    held by the agent as long as it lives; names its process
        agent.log     what it has to say
        jobs/<job>/   lock · state/ (the job's own) · s<submission>/r<R>/ (logs and results of an execution)
    """

    folder: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "store.db"

    @property
    def queues(self) -> Path:
        """The file that defines queues; need not exist."""
        return self.folder / "queues.toml"

    @property
    def secrets(self) -> Path:
        """A folder for each secret, in it a file for each key; need not exist."""
        return self.folder / "secrets"

    @property
    def wake(self) -> Path:
        """The FIFO."""
        return self.folder / "wake"

    @property
    def agent_lock(self) -> Path:
        """Locked by the agent, and names its process."""
        return self.folder / "agent.lock"

    @property
    def agent_log(self) -> Path:
        """Standard output and error of the agent."""
        return self.folder / "agent.log"

    def job_folder(self, job: JobID) -> Path:
        """Everything of a job that is files."""
        return self.folder / "jobs" / job.lower()

    def job_lock(self, job: JobID) -> Path:
        """Locked while any process of the job lives."""
        return self.job_folder(job) / "lock"

    def state_dir(self, job: JobID) -> Path:
        """The job's own, for its checkpoints; survives executions and submissions."""
        return self.job_folder(job) / "state"

    def executions_folder(self, job: JobID, submission: int) -> Path:
        """Holds a folder for each execution of a submission."""
        return self.job_folder(job) / f"s{submission}"

    def execution_folder(self, identity: Identity) -> Path:
        """Logs and results of one execution."""
        return self.executions_folder(identity.job, identity.submission) / f"r{identity.r}"
