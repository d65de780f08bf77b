# SPDX-License-Identifier: Apache-2.0
"""The verbs that change a job that exists: open, hold, release, stop, adopt. All may be given twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from typer import Option

from airflow_provider_dispatch.cli import views
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.naming import JobName
from airflow_provider_dispatch.cli.session import Session, build_not_found, fetch_person
from airflow_provider_dispatch.cli.values import read_moment
from airflow_provider_dispatch.cli.waiting import Patience, wait_for
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.holds import Actor, Hold, HoldRequest
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner

UNDER_WAY = "it may or may not have been written; the same call again completes it"
STANDS = "what was asked for stands and is carried out"


async def open_gate(session: Session, name: JobName) -> None:
    """Open the gate of a job. It can't be closed again."""
    ref = await session.pin(name)
    session.if_interrupted = UNDER_WAY
    await session.adapter.open(ref, deadline=session.build_deadline())
    session.screen.show(views.view_ref(ref))


async def hold(
    session: Session,
    name: JobName,
    patience: Patience,
    *,
    reason: Annotated[str, Option(help="Shown to everybody who wonders why the job doesn't run.")] = "",
    until: Annotated[str | None, Option(help="When it is lifted by itself: 2h, or 2030-01-31T18:00.")] = None,
    key: Annotated[str | None, Option(help="Names the hold; the same again is the same hold. Default: you.")] = None,
    wait: Annotated[bool, Option("--wait", help="Wait until the processes are gone.")] = False,
) -> ExitCode | None:
    """End a job's processes, free its room, and keep it from being admitted until it is released."""
    limit = patience.limit
    person = fetch_person()
    moment = None if until is None else read_moment("--until", until, session.now)
    request = HoldRequest(_build_key(person) if key is None else key, person, reason, moment)
    address = await session.locate(name)
    session.if_interrupted = UNDER_WAY
    placed = await session.adapter.hold(address, request, deadline=session.build_deadline())
    session.if_interrupted = STANDS
    code = None
    if wait:
        code, _ = await wait_for(session, await session.pin(name), Goal.HELD, limit)
    session.screen.show(views.view_hold(placed))
    return code


async def release(
    session: Session,
    name: JobName,
    *,
    key: Annotated[str | None, Option(help="Lift the hold of this key. Default: your own.")] = None,
    instance: Annotated[
        list[int] | None, Option(help="Lift exactly this hold, whoever placed it; may be given again.", min=1)
    ] = None,
) -> ExitCode | None:
    """Lift your own hold of a job, or exactly those that are named. Exit 4: not held by you, but by others."""
    address = await session.locate(name)
    seen = await session.adapter.inspect(address)
    if seen.is_unheard_of:
        raise build_not_found(seen.ref)
    person = fetch_person()
    if instance:
        mine = _pick_holds(seen, instance, Hold(0, "", person, "", session.now))
    else:
        mine = [each for each in seen.holds if each.key == (_build_key(person) if key is None else key)]
    remaining = seen.holds
    if mine:
        # Half of it may stand: then the hold has no key any more by which it could be found.
        named = " ".join(f"--instance {each.instance}" for each in mine)
        session.if_interrupted = (
            f"it may or may not have been written; dispatch release {seen.ref.job} {named} completes it"
        )
    for each in mine:
        remaining = await session.adapter.release(seen.ref, each, deadline=session.build_deadline())
    session.screen.show(views.view_remaining(remaining, [each.instance for each in mine]))
    if mine or not remaining:
        return None
    session.screen.tell("error: others hold it; to lift their holds, name them with --instance")
    return ExitCode.REFUSED


async def stop(
    session: Session,
    name: JobName,
    patience: Patience,
    *,
    reason: Annotated[str, Option(help="Kept with the job.")] = "",
    if_owner: Annotated[str | None, Option(help="Only while this task instance (its id) owns the job.")] = None,
) -> ExitCode | None:
    """Stop a job, all its submissions, and see that everything is gone. Exit 1: something is left."""
    limit = patience.limit
    address = await session.locate(name)
    seen = await session.adapter.inspect(address)
    if seen.is_unheard_of:
        raise build_not_found(seen.ref)
    session.if_interrupted = "the stop may or may not have begun; the same call again goes on with it"
    owner = None if if_owner is None else Owner(deployment=session.settings.deployment, instance_id=if_owner)
    with session.screen.working(f"stopping job {seen.ref.job}"):
        report = await session.adapter.stop(
            seen.ref.job,
            reason=reason or f"stopped by {fetch_person().id}",
            deadline=session.build_deadline(limit),
            if_owner=owner,
        )
    session.screen.show(views.view_stop(report))
    if report.is_complete:
        return None
    session.screen.tell("error: something is left; the stop goes on, and `dispatch stop` looks again")
    return ExitCode.FAILED


async def adopt(
    session: Session,
    name: JobName,
    *,
    instance_id: Annotated[
        str | None, Option(help="Id of the task instance that shall own it. Default: nobody; a person looks after it.")
    ] = None,
    try_number: Annotated[int, Option(help="Try of that task instance.", min=1)] = 1,
    expected: Annotated[
        str | None, Option(help="Only while this task instance (its id) owns the job. Default: whoever owns it now.")
    ] = None,
) -> None:
    """Change who owns a job. Without an owner, the end of its task no longer stops it."""
    ref = await session.pin(name)
    present = await _fetch_owner(session, ref)
    before = present if expected is None else replace(present, instance_id=expected)
    after = Owner(deployment=present.deployment)
    if instance_id is not None:
        after = replace(present, instance_id=instance_id, try_number=try_number)
    session.if_interrupted = UNDER_WAY
    await session.adapter.adopt(ref, after, expected=before, deadline=session.build_deadline())
    session.screen.show(views.view_owner(ref, after))


async def _fetch_owner(session: Session, ref: JobRef) -> Owner:
    record = await session.adapter.find(ref.job)
    for found in record.submissions:
        if found.ref.submission == ref.submission:
            return found.owner
    raise build_not_found(ref)


def _build_key(person: Actor) -> str:
    return f"{person.kind}/{person.id}"


def _pick_holds(seen: Observation, instances: list[int], unknown: Hold) -> list[Hold]:
    """Holds by number. One that is not active is handed on, too: the backend knows whether it ever was."""
    active = {hold.instance: hold for hold in seen.holds}
    return [active.get(number) or replace(unknown, instance=number) for number in dict.fromkeys(instances)]
