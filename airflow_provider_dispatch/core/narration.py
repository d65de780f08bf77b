# SPDX-License-Identifier: Apache-2.0
"""One line for people about where a job stands and why nothing moves, and which observations are worth a line.

The wait loops write these lines into the task log; the command and the page show the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_dispatch.core.clocks import CLOCK_OF_STATE
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import StopReport
from airflow_provider_dispatch.core.state import State


def describe(observation: Observation, now: datetime) -> str:
    """For instance ``queued in team-a, position 3: insufficient quota for cpu (12 min)``."""
    # Reasons come from people and schedulers: a line break in one must not look like a line of ours.
    line = " ".join(_describe_state(observation).splitlines())
    clock = CLOCK_OF_STATE.get(observation.state)
    if clock is None or observation.state is State.RUNNING:
        return line
    elapsed = observation.clocks.reading(clock).elapsed(now)
    return f"{line} ({describe_duration(elapsed)})" if elapsed >= timedelta(seconds=1) else line


def describe_stop(report: StopReport) -> str:
    """For instance ``stopped: 3 parts are gone; still alive: execution 1000001 (its processes are still ending)``."""
    gone = f"{len(report.stopped)} part{' is' if len(report.stopped) == 1 else 's are'} gone"
    left = [
        f"{what}: " + ", ".join(f"{one.object} ({one.detail})" if one.detail else one.object for one in parts)
        for what, parts in (("still alive", report.alive), ("not proved dead", report.unproven))
        if parts
    ]
    line = "; ".join([f"{'stopped' if report.is_complete else 'stopping'}: {gone}", *left])
    return " ".join(line.splitlines())


def describe_duration(duration: timedelta) -> str:
    """Two units at most: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    seconds = int(duration.total_seconds())
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def build_fingerprint(observation: Observation) -> tuple[object, ...]:
    """Equal for two observations that deserve one line together: waiting time alone is no news."""
    pending = observation.pending
    return (
        observation.ref.submission,
        observation.state,
        observation.cause,
        observation.detail,
        observation.execution,
        observation.gates,
        tuple(hold.instance for hold in observation.holds),
        (pending.code, pending.message, pending.position) if pending else None,
        observation.ranks,
        observation.waiting_role,
    )


def _describe_state(observation: Observation) -> str:
    match observation.state:
        case State.GATED:
            others = ", ".join(observation.gates.others)
            return f"gated by {others}" if others else "gated: waiting for its gate to be opened"
        case State.QUEUED:
            return _describe_queued(observation)
        case State.STARTING | State.RUNNING:
            return _describe_ranks(observation)
        case State.HOLDING:
            return f"{_describe_holders(observation)}; its processes are still ending"
        case State.HELD:
            return _describe_holders(observation)
        case State.GONE if observation.is_unheard_of:
            return "not started yet"
        case _:
            cause = f", {observation.cause.replace('_', ' ')}" if observation.cause else ""
            return f"{observation.state}{cause}" + (f": {observation.detail}" if observation.detail else "")


def _describe_queued(observation: Observation) -> str:
    pending = observation.pending
    if observation.gates.others:
        return f"gated by {', '.join(observation.gates.others)}"
    if pending is None:
        return "queued"
    where = f" in {pending.queue}" if pending.queue else ""
    position = f", position {pending.position}" if pending.position is not None else ""
    message = pending.message or observation.detail
    return f"queued{where}{position}" + (f": {message}" if message else "")


def _describe_ranks(observation: Observation) -> str:
    nodes, ready = sum(r.nodes for r in observation.ranks), sum(r.ready for r in observation.ranks)
    epoch = f", epoch {observation.execution.epoch}" if observation.execution else ""
    if observation.state is State.RUNNING:
        return f"running: {nodes} of {nodes} ranks{epoch}"
    waiting = f", waiting for {observation.waiting_role}" if observation.waiting_role else ""
    return f"admitted, {ready} of {nodes} ranks ready{waiting}{epoch}"


def _describe_holders(observation: Observation) -> str:
    if not observation.holds:
        return "held"
    holders = []
    for hold in observation.holds:
        until = f" until {hold.until:%Y-%m-%d %H:%M %Z}" if hold.until else ""
        holders.append(f"{hold.actor.id}{until}" + (f": {hold.reason}" if hold.reason else ""))
    return f"held by {' and by '.join(holders)}"
