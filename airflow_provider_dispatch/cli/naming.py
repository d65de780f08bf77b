# SPDX-License-Identifier: Apache-2.0
"""Which job a person means: an id, a reference, or the Airflow task that owns it.

The session turns the outcome into an address that adapters take. Reads arguments only; asks no backend.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from airflow_provider_dispatch.core.identity import NOT_MAPPED, JobID, build_task_job_id, parse_job_id
from airflow_provider_dispatch.exceptions import SpecError

TASK_PANEL = "The job of an Airflow task"
_REFERENCE = re.compile(
    r"(?:(?P<place>.+)/)?dj-(?P<job>[^-/]+)-s(?P<submission>[1-9]\d{0,9})", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job as it was named.

    :param submission: None means the newest.
    :param place: empty where only the job was named.
    """

    job: JobID
    submission: int | None = None
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """The arguments that name one job."""

    job: Annotated[
        str | None,
        Argument(metavar="JOB", help="Job id (26 characters, either case), or a reference: [PLACE/]dj-ID-sN."),
    ] = None
    dag: Annotated[str | None, Option(help="DAG id.", rich_help_panel=TASK_PANEL)] = None
    run: Annotated[str | None, Option(help="Run id.", rich_help_panel=TASK_PANEL)] = None
    task: Annotated[str | None, Option(help="Task id, with its groups.", rich_help_panel=TASK_PANEL)] = None
    map_index: Annotated[
        int, Option(help="Map index; -1 when the task is not mapped.", min=NOT_MAPPED, rich_help_panel=TASK_PANEL)
    ] = NOT_MAPPED

    def parse(self, deployment: str) -> NamedJob:
        """The job that is meant.

        :param deployment: whose tasks ``--dag`` and so on name.
        :raises SpecError: none, several or half a name.
        """
        parts = {"--dag": self.dag, "--run": self.run, "--task": self.task}
        given = [option for option, value in parts.items() if value is not None]
        if self.job is not None:
            if given or self.map_index != NOT_MAPPED:
                raise SpecError("JOB", "name the job either by JOB or by --dag, --run and --task, not both", self.job)
            return parse_job(self.job)
        if self.dag is None or self.run is None or self.task is None:
            missing = ", ".join(option for option in parts if option not in given)
            problem = f"give {missing} too" if given else "name a job: its id, or --dag, --run and --task"
            raise SpecError("JOB", problem)
        return NamedJob(build_task_job_id(deployment, self.dag, self.run, self.task, self.map_index))


def parse_job(text: str) -> NamedJob:
    """Read an id or a reference.

    :raises SpecError: neither.
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return NamedJob(parse_job_id(text.strip(), field="JOB"))
    return NamedJob(parse_job_id(match["job"], field="JOB"), int(match["submission"]), match["place"] or "")
