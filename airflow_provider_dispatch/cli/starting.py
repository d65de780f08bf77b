# SPDX-License-Identifier: Apache-2.0
"""The verb `start`: a job from a file, from options, or from both, behind its gate or through it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from airflow_provider_dispatch.cli import views
from airflow_provider_dispatch.cli.documents import read_document
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.settings import BackendSettings
from airflow_provider_dispatch.cli.values import read_duration, read_pairs
from airflow_provider_dispatch.cli.waiting import Patience, wait_for
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.identity import JobID, build_job_id, next_submission, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec, parse_job_spec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import SpecError

SPEC_PANEL = "The job"
SPEC_ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOptions:
    """A job's fields as options; each overrides the file's."""

    command: Annotated[
        list[str] | None, Argument(metavar="-- COMMAND", help="Program and arguments of every rank; no shell.")
    ] = None
    file: Annotated[
        Path | None,
        Option(
            "--file", "-f", help="YAML or JSON with the fields of a job spec; - is stdin.", rich_help_panel=SPEC_PANEL
        ),
    ] = None
    nodes: Annotated[int | None, Option(help="How many ranks.", rich_help_panel=SPEC_PANEL)] = None
    image: Annotated[str | None, Option(help="Container image.", rich_help_panel=SPEC_PANEL)] = None
    runtime: Annotated[str | None, Option(help="Training runtime by name.", rich_help_panel=SPEC_PANEL)] = None
    env: Annotated[
        list[str] | None,
        Option(help="name=value, or a name alone: your own value. May be given again.", rich_help_panel=SPEC_PANEL),
    ] = None
    secret: Annotated[
        list[str] | None,
        Option(
            help="variable=secret/key: the value stands in that secret, where the ranks run. May be given again.",
            rich_help_panel=SPEC_PANEL,
        ),
    ] = None
    resource: Annotated[
        list[str] | None,
        Option(help="Per node, such as cpu=500m or memory=1Gi. May be given again.", rich_help_panel=SPEC_PANEL),
    ] = None
    label: Annotated[list[str] | None, Option(help="name=value. May be given again.", rich_help_panel=SPEC_PANEL)] = (
        None
    )
    queue: Annotated[str | None, Option(help="Queue to wait in.", rich_help_panel=SPEC_PANEL)] = None
    priority: Annotated[str | None, Option(help="A number or a name.", rich_help_panel=SPEC_PANEL)] = None
    grace_period: Annotated[str | None, Option(help="Between TERM and KILL: 30s, 2m.", rich_help_panel=SPEC_PANEL)] = (
        None
    )
    max_restarts: Annotated[int | None, Option(help="Restarts after a failure.", rich_help_panel=SPEC_PANEL)] = None
    max_preemptions: Annotated[
        int | None, Option(help="Preemptions after which it fails.", rich_help_panel=SPEC_PANEL)
    ] = None
    working_dir: Annotated[
        Path | None,
        Option(help="Folder of the processes, local only; with a COMMAND yours is meant.", rich_help_panel=SPEC_PANEL),
    ] = None

    def build_spec(self, settings: BackendSettings) -> JobSpec:
        """The job, with the queue and the priority of the settings where it names none.

        :raises SpecError: naming the wrong field or option.
        """
        fields = self._read_file() | self._list_given()
        if self.command and settings.backend == "local":
            # Who types a command means it here, as with any other program.
            fields.setdefault("working_dir", str(Path.cwd()))
        fields.setdefault("queue", settings.queue)
        fields.setdefault("priority", settings.priority)
        if "command" not in fields and "roles" not in fields:
            raise SpecError("COMMAND", "say what to run: a command after --, or a spec with --file")
        return parse_job_spec(fields)

    def _read_file(self) -> dict[str, object]:
        if self.file is None:
            return {}
        document = read_document("--file", self.file)
        if not isinstance(document, dict):
            raise SpecError("--file", "must hold a mapping of the fields of a job spec", str(self.file))
        return dict(document)

    def _list_given(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "command": self._check_command(),
            "nodes": self.nodes,
            "image": self.image,
            "runtime": self.runtime,
            "env": read_environment(self.env or ()) or None,
            "secrets": read_pairs("--secret", self.secret or (), is_shown=False) or None,
            "resources": read_pairs("--resource", self.resource or ()) or None,
            "labels": read_pairs("--label", self.label or ()) or None,
            "queue": self.queue,
            "priority": _read_priority(self.priority),
            "grace_period": _read_grace(self.grace_period),
            "max_restarts": self.max_restarts,
            "max_preemptions": self.max_preemptions,
            "working_dir": str(self.working_dir.expanduser().absolute()) if self.working_dir else None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _check_command(self) -> list[str] | None:
        if self.command and len(self.command) == 1 and self.command[0].lower().endswith(SPEC_ENDINGS):
            (word,) = self.command
            if shutil.which(word) is None:
                raise SpecError("COMMAND", "looks like a spec: give it with --file", word)
        return self.command or None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Which submission to make, and how far to go with it."""

    job: Annotated[str | None, Option(help="Job id; a new one if not given.")] = None
    submission: Annotated[
        int | None, Option(help="Number; the next free one if not given. The same one again is the same start.", min=1)
    ] = None
    open_gate: Annotated[bool, Option("--open", help="Open the gate, too.")] = False
    wait: Annotated[bool, Option("--wait", help="Wait until it has finished. Exit 1: it failed.")] = False


async def start(session: Session, spec: SpecOptions, options: StartOptions, patience: Patience) -> ExitCode | None:
    """Create a job behind its gate: dispatch start --nodes 2 --open -- python train.py."""
    limit = patience.limit
    wanted = spec.build_spec(session.settings)
    job = parse_job_id(options.job, field="--job") if options.job else _draw_job_id(session)
    with session.screen.working(f"starting job {job}"):
        ref = await _create(session, job, options, wanted)
    if not options.wait:
        session.screen.show(views.view_ref(ref))
        return None
    session.screen.tell_progress(f"job {ref.id}")
    code, seen = await wait_for(session, ref, Goal.FINISHED, limit)
    session.screen.show(views.view_observation(seen, session.now))
    return code


async def _create(session: Session, job: JobID, options: StartOptions, spec: JobSpec) -> JobRef:
    submission = options.submission
    if submission is None:
        record = await session.adapter.find(job)
        submission = next_submission(record.ledger, (found.ref.submission for found in record.submissions))
    # Nobody's death stops it: who starts a job by hand looks after it.
    session.if_interrupted = (
        f"the job may have been started and goes on; look with: dispatch inspect {job}; "
        f"the same call with --job {job} --submission {submission} completes it"
    )
    request = StartRequest(job, submission, 1, spec, Owner(deployment=session.settings.deployment))
    ref = await session.adapter.start(request, deadline=session.build_deadline())
    if options.open_gate:
        await session.adapter.open(ref, deadline=session.build_deadline())
    return ref


def read_environment(texts: list[str] | tuple[()]) -> dict[str, str]:
    """Variables for the ranks; a name alone takes the caller's own value, which no process list shows then.

    :raises SpecError: the caller has no variable of that name.
    """
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise SpecError("--env", "you have no such variable; write name=value", name)
        variables[name] = value if equals else os.environ[name]
    return variables


def _draw_job_id(session: Session) -> JobID:
    return build_job_id(int(session.now.timestamp() * 1000), os.urandom(10))


def _read_priority(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() else text


def _read_grace(text: str | None) -> timedelta | None:
    return None if text is None else read_duration("--grace-period", text)
