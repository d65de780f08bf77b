# SPDX-License-Identifier: Apache-2.0
"""The answers of the verbs, each as plain data for programs and as a table for people. Pure.

The plain data is the contract's own, with names for what a program would have to compute. Values of environment
variables are left out: they may be secret, and answers end in tickets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import cast

from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.capabilities import Finding, Preflight, describe_age
from airflow_provider_dispatch.core.holds import Hold
from airflow_provider_dispatch.core.identity import NOT_MAPPED
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.narration import describe, describe_duration
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobEvent, JobRecord, StopReport, SubmissionRecord

Plain = dict[str, object]
HIDDEN = "(hidden)"


def view_ref(ref: JobRef) -> View:
    """A submission's address."""
    rows = [("job", ref.job), ("submission", str(ref.submission)), ("reference", ref.id)]
    return View(dump_ref(ref), rows=rows)


def view_observation(seen: Observation, now: datetime) -> View:
    """Where a job stands."""
    rows = [
        ("reference", seen.ref.id),
        ("state", seen.state.value),
        ("", describe(seen, now)),
        ("cause", seen.cause.value if seen.cause else ""),
        ("epoch", str(seen.execution.epoch) if seen.execution else ""),
        ("executions", str(seen.executions) if seen.executions else ""),
        *(("ranks", _describe_ranks(seen, index)) for index in range(len(seen.ranks))),
        *(("hold", describe_hold(hold)) for hold in seen.holds),
        ("times", _describe_clocks(seen, now)),
        ("result", "" if seen.result is None else str(seen.result)),
    ]
    return View(dump_observation(seen, now), rows=[row for row in rows if row[1]])


def view_records(records: Sequence[SubmissionRecord], now: datetime) -> View:
    """Jobs, one a line."""
    rows = [
        (
            record.ref.job,
            str(record.ref.submission),
            record.state.value,
            record.cause.value if record.cause else "-",
            record.queue or "-",
            describe_owner(record.owner) or "-",
            describe_duration(now - record.created_at) if record.created_at else "-",
        )
        for record in records
    ]
    columns = ("JOB", "SUBMISSION", "STATE", "CAUSE", "QUEUE", "OWNER", "AGE")
    return View([dump_record(record) for record in records], columns, rows, () if rows else ("no jobs",))


def view_job_record(record: JobRecord, now: datetime) -> View:
    """All that is left of a job."""
    plain = wire.dump(record) | {"submissions": [dump_record(found) for found in record.submissions]}
    table = view_records(record.submissions, now)
    notes = [f"orphan: {orphan}" for orphan in record.orphans]
    notes.append(f"highest submission ever used: {record.ledger}")
    return View(plain, table.columns, table.rows, notes)


def view_events(events: Sequence[JobEvent]) -> View:
    """What was decided about a job."""
    rows = [
        (_write_time(event.at), str(event.submission), str(event.epoch or "-"), event.kind, event.message)
        for event in events
    ]
    columns = ("TIME", "SUBMISSION", "EPOCH", "KIND", "MESSAGE")
    return View([wire.dump(event) for event in events], columns, rows, () if rows else ("no events",))


def view_findings(named: Mapping[str, Finding]) -> View:
    """Answers with their reasons, and beneath what isn't yes its cure."""
    plain = {str(name): wire.dump(finding) for name, finding in named.items()}
    return View(plain, ("NAME", "ANSWER", "SOURCE", "REASON"), _list_findings(named.items()))


def view_preflight(found: Preflight, now: datetime) -> View:
    """Checks first, then what follows from them."""
    rows = [*_list_findings(found.checks.items()), *_list_findings(found.capabilities.items())]
    verdict = "jobs may be started here" if found.is_proved else "not proved: jobs must not be started here"
    plain = wire.dump(found) | {"is_proved": found.is_proved}
    return View(plain, ("NAME", "ANSWER", "SOURCE", "REASON"), rows, (describe_age(found, now), verdict))


def view_hold(hold: Hold) -> View:
    """A hold that was placed."""
    return View(wire.dump(hold), rows=[("instance", str(hold.instance)), ("key", hold.key), ("", describe_hold(hold))])


def view_remaining(remaining: Sequence[Hold], released: Sequence[int]) -> View:
    """What still holds a job after a release."""
    plain = {"released": list(released), "remaining": [wire.dump(hold) for hold in remaining]}
    lifted = ", ".join(map(str, released))
    notes = [f"released: hold {lifted}" if released else "nothing of that was held"]
    notes += [f"still held by {describe_hold(hold)}" for hold in remaining]
    return View(plain, notes=notes)


def view_stop(report: StopReport) -> View:
    """What a stop did."""
    groups = (("stopped", report.stopped), ("alive", report.alive), ("unproven", report.unproven))
    rows = [(outcome, found.object, found.detail) for outcome, reports in groups for found in reports]
    nothing = () if rows else (f"nothing was left of job {report.job}",)
    return View(wire.dump(report) | {"is_complete": report.is_complete}, ("OUTCOME", "OBJECT", "DETAIL"), rows, nothing)


def view_owner(ref: JobRef, owner: Owner) -> View:
    """Who looks after a job now."""
    rows = [("reference", ref.id), ("owner", describe_owner(owner) or "nobody"), ("instance", owner.instance_id)]
    return View({"ref": dump_ref(ref), "owner": wire.dump(owner)}, rows=[row for row in rows if row[1]])


def dump_ref(ref: JobRef) -> Plain:
    """A reference with its text."""
    return wire.dump(ref) | {"id": ref.id}


def dump_observation(seen: Observation, now: datetime) -> Plain:
    """An observation with its sentence."""
    epoch = seen.execution.epoch if seen.execution else None
    return wire.dump(seen) | {"ref": dump_ref(seen.ref), "epoch": epoch, "description": describe(seen, now)}


def dump_record(record: SubmissionRecord) -> Plain:
    """A submission without the values of its environment."""
    plain = wire.dump(record) | {"ref": dump_ref(record.ref)}
    spec = cast("Plain", plain["spec"])
    for role in cast("Iterable[Plain]", spec["roles"]):
        role["env"] = dict.fromkeys(cast("Mapping[str, str]", role["env"]), HIDDEN)
    return plain


def dump_line(line: OutputLine) -> Plain:
    """A line of output, with the text that `--cursor` takes."""
    return {
        "at": line.at.isoformat(),
        "role": line.role,
        "rank": line.rank,
        "execution": line.execution,
        "sequence": line.sequence,
        "stream": line.stream,
        "text": line.text,
        "notice": line.notice,
        "cursor": line.cursor.to_text() if line.cursor is not None else None,
    }


def describe_hold(hold: Hold) -> str:
    """For instance ``1: ann since 2030-01-01 10:00:00 UTC until …: maintenance``."""
    until = f" until {_write_time(hold.until)}" if hold.until else ""
    reason = f": {hold.reason}" if hold.reason else ""
    return f"{hold.instance}: {hold.actor.id} since {_write_time(hold.since)}{until}{reason}"


def describe_owner(owner: Owner) -> str:
    """``dag/run/task`` with the map index, or nothing."""
    if not owner.dag_id:
        return ""
    index = "" if owner.map_index == NOT_MAPPED else f"[{owner.map_index}]"
    return f"{owner.dag_id}/{owner.run_id}/{owner.task_id}{index}"


def _describe_ranks(seen: Observation, index: int) -> str:
    role = seen.ranks[index]
    counts = {"ready": role.ready, "running": role.running, "succeeded": role.succeeded, "failed": role.failed}
    return f"{role.role}: {role.nodes} in all, " + ", ".join(f"{count} {name}" for name, count in counts.items())


def _describe_clocks(seen: Observation, now: datetime) -> str:
    readings = {
        name: getattr(seen.clocks, name).elapsed(now) for name in ("gated", "queued", "starting", "running", "held")
    }
    return ", ".join(
        f"{name} {describe_duration(time)}" for name, time in readings.items() if time.total_seconds() >= 1
    )


def _list_findings(named: Iterable[tuple[str, Finding]]) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, found in named:
        rows.append((str(name), found.value.value, found.source.value, found.reason))
        if found.cure:
            rows.append(("", "", "", f"cure: {found.cure}"))
    return rows


def _write_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
