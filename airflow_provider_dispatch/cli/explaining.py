# SPDX-License-Identifier: Apache-2.0
"""Why a job waits or why it failed, with what shows it and what to do: the answer of ``dispatch explain``. Pure.

What the contract can say it says in :mod:`~airflow_provider_dispatch.core.diagnosis` and
:mod:`~airflow_provider_dispatch.core.narration`; here it is put together, and the next command is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.views import dump_ref
from airflow_provider_dispatch.core.diagnosis import ADVICE, diagnose
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.narration import describe
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobEvent
from airflow_provider_dispatch.core.state import State

EVENTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Explanation:
    """One answer.

    :param facts: name and value of what shows it.
    :param advice: what to do; empty when nothing is to be done.
    :param last_lines: of the first failing rank.
    :param events: the newest, oldest first.
    """

    ref: JobRef
    state: State
    summary: str
    advice: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    last_lines: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


def explain(seen: Observation, happened: Sequence[JobEvent], now: datetime) -> Explanation:
    """Put together what is known of a job that somebody has heard of."""
    events = tuple(
        f"{event.at:%H:%M:%S} {event.kind}" + (f": {event.message}" if event.message else "")
        for event in happened[-EVENTS_SHOWN:]
    )
    facts = (*_list_pending(seen), *((f"{found.object} {found.field}", found.value) for found in seen.evidence))
    if seen.is_over and seen.state is not State.SUCCEEDED:
        found = diagnose(seen)
        return Explanation(seen.ref, seen.state, found.summary, found.advice, facts, found.last_lines, events)
    return Explanation(seen.ref, seen.state, describe(seen, now), _advise(seen), facts, (), events)


def view_explanation(answer: Explanation) -> View:
    """The answer as lines for people."""
    plain = {
        "ref": dump_ref(answer.ref),
        "state": answer.state.value,
        "summary": answer.summary,
        "advice": answer.advice,
        "facts": [{"name": name, "value": value} for name, value in answer.facts],
        "last_lines": list(answer.last_lines),
        "events": list(answer.events),
    }
    notes = [answer.summary]
    notes += [f"What to do: {answer.advice}."] if answer.advice else []
    notes += [f"  {name} = {value}" for name, value in answer.facts]
    notes += [f"  | {line}" for line in answer.last_lines]
    notes += ["What happened last:", *(f"  {event}" for event in answer.events)] if answer.events else []
    return View(plain, notes=notes)


def _list_pending(seen: Observation) -> tuple[tuple[str, str], ...]:
    pending = seen.pending
    if pending is None:
        return ()
    position = "" if pending.position is None else str(pending.position)
    facts = (
        ("reason", pending.code),
        ("message", pending.message),
        ("queue", pending.queue),
        ("position", position),
        ("evictions", str(pending.evictions or "")),
    )
    return tuple(fact for fact in facts if fact[1])


def _advise(seen: Observation) -> str:
    if seen.cause is not None:
        return ADVICE[seen.cause]
    job = seen.ref.job
    match seen.state:
        case State.GATED | State.QUEUED if seen.gates.others:
            return f"ask whoever owns {', '.join(seen.gates.others)} to lift it"
        case State.GATED:
            return f"open its gate: dispatch open {job}"
        case State.HELD:
            return f"lift the hold: dispatch release {job} --instance {seen.holds[0].instance}" if seen.holds else ""
        case State.HOLDING | State.STOPPING:
            return "wait until its processes have ended"
        case State.QUEUED:
            return "wait for room, or see who has it: dispatch list --state running"
        case State.STARTING:
            return f"read what its ranks print: dispatch logs -f {job}"
        case _:
            return ""
