# SPDX-License-Identifier: Apache-2.0
"""The verbs that only look: preflight, capabilities, inspect, find, list, events and explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from airflow_provider_dispatch.cli import views
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.explaining import explain as build_explanation
from airflow_provider_dispatch.cli.explaining import view_explanation
from airflow_provider_dispatch.cli.naming import JobName
from airflow_provider_dispatch.cli.session import Session, build_not_found
from airflow_provider_dispatch.cli.starting import SpecOptions
from airflow_provider_dispatch.cli.values import read_pairs
from airflow_provider_dispatch.core.capabilities import Preflight, may_start
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import JobSelector
from airflow_provider_dispatch.core.state import State


async def preflight(
    session: Session,
    *,
    file: Annotated[
        Path | None, Option("--file", "-f", help="A job spec: could it ever fit its queue? - is stdin.")
    ] = None,
) -> ExitCode | None:
    """Prove what the backend can do: checks, capabilities, and whether jobs may be started. Exit 1: not proved.

    On a cluster a job of its own is watched behind its gate for ten seconds, and removed.
    """
    spec = SpecOptions(file=file).build_spec(session.settings) if file is not None else None
    found = await _look(session, spec)
    session.screen.show(views.view_preflight(found, session.now))
    return ExitCode.OK if found.is_proved else ExitCode.FAILED


async def capabilities(session: Session) -> ExitCode | None:
    """What the backend can do, each with its reason. Exit 1: it lacks one that every job needs."""
    found = await _look(session)
    session.screen.show(views.view_findings({str(name): finding for name, finding in found.capabilities.items()}))
    return ExitCode.OK if may_start(found.capabilities) else ExitCode.FAILED


async def inspect(session: Session, name: JobName) -> None:
    """Where a job stands now: state, cause, ranks, holds, times."""
    seen = await session.adapter.inspect(await session.locate(name))
    session.screen.show(views.view_observation(seen, session.now))
    if seen.is_unheard_of:
        raise build_not_found(seen.ref)


async def find(session: Session, name: JobName) -> None:
    """All that is left of a job: its submissions, its orphans, the highest submission number ever used."""
    address = await session.locate(name)
    # The reference is looked at first: it may be of another place.
    seen = await session.adapter.inspect(address)
    record = await session.adapter.find(address.job if isinstance(address, JobRef) else address)
    session.screen.show(views.view_job_record(record, session.now))
    if seen.is_unheard_of and not record.submissions and not record.orphans:
        raise build_not_found(seen.ref)


async def list_jobs(
    session: Session,
    *,
    queue: Annotated[str | None, Option(help="Jobs of this queue.")] = None,
    state: Annotated[list[State] | None, Option(help="Jobs in this state; may be given again.")] = None,
    label: Annotated[list[str] | None, Option(help="Jobs with this label, name=value; may be given again.")] = None,
    dag: Annotated[str | None, Option(help="Jobs that tasks of this DAG own.")] = None,
    run: Annotated[str | None, Option(help="Jobs that tasks of this run own.")] = None,
    deployment: Annotated[str | None, Option(help="Jobs of this Airflow.")] = None,
) -> None:
    """The newest submission of each job that matches all that is given, oldest job first."""
    labels = read_pairs("--label", label or ())
    selector = JobSelector(queue, deployment, dag, run, labels, frozenset(state or ()))
    session.screen.show(views.view_records(await session.adapter.list(selector), session.now))


async def events(session: Session, name: JobName) -> None:
    """What was decided about a job and what happened to it, oldest first."""
    address = await session.locate(name)
    found = await session.adapter.events(address)
    if not found:
        seen = await session.adapter.inspect(address)
        if seen.is_unheard_of:
            raise build_not_found(seen.ref)
    session.screen.show(views.view_events(found))


async def explain(session: Session, name: JobName) -> None:
    """Why a job waits, or why it failed, and what to do about it."""
    address = await session.locate(name)
    seen = await session.adapter.inspect(address)
    if seen.is_unheard_of:
        raise build_not_found(seen.ref)
    happened = await session.adapter.events(address)
    session.screen.show(view_explanation(build_explanation(seen, happened, session.now)))


async def _look(session: Session, spec: JobSpec | None = None) -> Preflight:
    session.if_interrupted = "a job that was being watched is removed, at the latest by the next preflight"
    with session.screen.working("looking at the backend; on a cluster a job of its own is watched for ten seconds"):
        return await session.adapter.preflight(spec)
