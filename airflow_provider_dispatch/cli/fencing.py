# SPDX-License-Identifier: Apache-2.0
"""The group `fence`: for a person who must decide about a pod whose end nobody saw, or act while no controller does."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option, Typer

from airflow_provider_dispatch.cli.cluster import ClusterOptions
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.naming import JobName
from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.session import Session, fetch_person
from airflow_provider_dispatch.cli.values import read_duration
from airflow_provider_dispatch.cli.verb import add_verb
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import NotInstalledError, SpecError

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.vouching import Doubt


async def show(session: Session, name: JobName, cluster: ClusterOptions) -> ExitCode | None:
    """The pods of a job that are not proven dead: where they were, since when, what node and pod say now.

    Exit 1: there are some.
    """
    async with cluster.open_keeper(session) as keeper:
        found = await keeper.fetch_doubts(_read_job(session, name))
    session.screen.show(_view_doubts(found))
    return ExitCode.FAILED if found else None


async def confirm(
    session: Session,
    name: JobName,
    cluster: ClusterOptions,
    *,
    pod: Annotated[list[str] | None, Option(help="Name or UID of a pod; may be given again.")] = None,
    node: Annotated[list[str] | None, Option(help="All that were on this node; may be given again.")] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="You know that they are dead. Without this, they are shown.")
    ] = False,
) -> ExitCode | None:
    """Vouch that pods are dead: their machine is off, or you have seen their processes end.

    If you are wrong, two executions of the job may run at once.
    """
    if not pod and not node:
        raise SpecError("--pod", "name what you vouch for, by --pod or --node; dispatch fence show lists them")
    job = _read_job(session, name)
    async with cluster.open_keeper(session) as keeper:
        found = await keeper.fetch_doubts(job)
        chosen = _choose(found, pod or (), node or ())
        if not yes:
            session.screen.show(_view_doubts(chosen))
            session.screen.tell("nothing was written; --yes says that you know them to be dead")
            return ExitCode.FAILED
        session.if_interrupted = "the word may or may not be written; dispatch fence show tells"
        await keeper.confirm_deaths(job, [one.uid for one in chosen], by=fetch_person().id)
        left = await keeper.fetch_doubts(job)
    session.screen.show(_view_doubts(left))
    return ExitCode.FAILED if left else None


async def lift(
    session: Session,
    name: JobName,
    cluster: ClusterOptions,
    *,
    limit: Annotated[str, Option("--timeout", help="How long to look after the job.")] = "60s",
) -> ExitCode | None:
    """While no controller runs: do for one job, once, what it would do, by the same rules. Exit 1: pods are in doubt.

    It takes the controller's Lease for as long, so that a controller that lives, or comes, is never acted beside.
    """
    seconds = read_duration("--timeout", limit).total_seconds()
    job, keeper = _read_job(session, name), cluster.open_keeper(session)
    session.if_interrupted = "the job is as the controller would have left it; the same call again goes on"
    with session.screen.working("taking the controller's Lease and looking after the job"):
        decided = await _load_look_after()(keeper.settings.model_dump(), job, limit_seconds=seconds)
    async with keeper:
        found = await keeper.fetch_doubts(job)
    doubts = _view_doubts(found)
    said = f"decided: {', '.join(decided)}" if decided else "nothing was to be decided"
    plain = {"decided": list(decided), "doubts": doubts.plain}
    session.screen.show(View(plain, doubts.columns, doubts.rows, (said, *doubts.notes)))
    return ExitCode.FAILED if any(not one.is_there for one in found) else None


def _load_look_after() -> Callable[..., Coroutine[object, object, tuple[str, ...]]]:
    """The controller's own code, by name: the command and the controller are two programs that need not both be there.

    :raises NotInstalledError: the controller's libraries are missing.
    """
    try:
        module = importlib.import_module("airflow_provider_dispatch.controller.once")
    except ModuleNotFoundError as error:
        said = f"the controller's rules need {error.name}: pip install 'airflow-provider-dispatch[controller]'"
        raise NotInstalledError(said) from error
    return cast("Callable[..., Coroutine[object, object, tuple[str, ...]]]", module.look_after)


def build_group() -> Typer:
    """The group."""
    made = Typer(no_args_is_help=True, help="Decide about pods whose end nobody saw.")
    for verb in (show, confirm, lift):
        add_verb(made, verb)
    return made


def _read_job(session: Session, name: JobName) -> JobID:
    return name.parse(session.settings.deployment).job


def _choose(found: Sequence[Doubt], pods: Sequence[str], nodes: Sequence[str]) -> list[Doubt]:
    """Those that are named.

    :raises SpecError: a name that means none of them.
    """
    for option, known, named in (
        ("--pod", {word for one in found for word in (one.pod, one.uid)}, pods),
        ("--node", {one.node for one in found}, nodes),
    ):
        for word in named:
            if word not in known:
                listed = ", ".join(sorted(filter(None, known))) or "none"
                raise SpecError(option, f"is not one of those in doubt: {listed}", word)
    return [one for one in found if one.pod in pods or one.uid in pods or one.node in nodes]


def _view_doubts(found: Sequence[Doubt]) -> View:
    plain = [asdict(one) | {"since": one.since.isoformat() if one.since else None} for one in found]
    rows = [
        (
            one.pod,
            str(one.submission),
            one.node or "-",
            f"{one.since:%Y-%m-%d %H:%M:%S %Z}" if one.since else "-",
            one.pod_says,
            one.node_says,
        )
        for one in found
    ]
    columns = ("POD", "SUBMISSION", "NODE", "SINCE", "POD SAYS", "NODE SAYS")
    return View(plain, columns, rows, () if rows else ("every recorded pod is proven dead",))
