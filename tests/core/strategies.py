# SPDX-License-Identifier: Apache-2.0
"""Random values of the contract for property tests, and short ways to a plain one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from hypothesis import strategies as st

from airflow_provider_dispatch import core
from airflow_provider_dispatch.core.capabilities import Capability, Finding, Preflight
from airflow_provider_dispatch.core.clocks import LONGEST_BUDGET, Budgets, ClockReading, Clocks
from airflow_provider_dispatch.core.decision import Decision, OnTimeout, OnUnfittable, Supervision
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.identity import Identity, JobID, build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Evidence, Gates, Observation, Pending, Progress
from airflow_provider_dispatch.core.records import JobEvent, JobSelector, StartRequest, SubmissionRecord
from airflow_provider_dispatch.core.recovery import Recovery, RecoveryPolicy, RecoveryRule, RecoveryStep
from airflow_provider_dispatch.core.state import Cause, State

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
JOB = build_job_id(1_700_000_000_000, bytes(range(10)))
REF = JobRef(JOB, 1, "local", "store@host")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def at(number: float) -> datetime:
    return NOW + timedelta(seconds=number)


def observe(state: State, **fields: Any) -> Observation:
    return Observation(state, REF, **fields)


def iter_dataclasses() -> Iterator[type]:
    """Every dataclass that a module of the core defines; what ranks print has tests of its own."""
    for module in iter_modules(core.__path__, f"{core.__name__}."):
        if not module.name.endswith(".output"):
            for value in vars(import_module(module.name)).values():
                if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.name:
                    yield value


DECADES = timedelta(days=9000)
zones = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(-timedelta(hours=3, minutes=30))])
moments = st.builds(lambda away, zone: (NOW + away).astimezone(zone), st.timedeltas(-DECADES, DECADES), zones)
durations = st.timedeltas(timedelta(0), LONGEST_BUDGET)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
job_ids = st.builds(build_job_id, st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10)).map(JobID)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def flat_specs(draw: st.DrawFn) -> JobSpec:
    return JobSpec(
        command=draw(st.lists(words, min_size=1, max_size=3)),
        nodes=draw(st.integers(1, 1_000_000)),
        env={f"V{name}": value for name, value in draw(st.dictionaries(st.integers(0, 9), words, max_size=2)).items()},
        secrets=draw(st.dictionaries(st.sampled_from(["S0", "S1"]), st.sampled_from(["team/a", "team/b"]), max_size=2)),
        resources=draw(st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 2**40), max_size=2)),
        grace_period=draw(st.timedeltas(timedelta(0), timedelta(days=366))),
        labels=draw(st.dictionaries(words, words, max_size=2)),
        max_restarts=draw(st.integers(0, 1000)),
    )


def register() -> None:
    """Tell hypothesis what its own ideas of these types miss: aware times, values that the types themselves refuse."""
    rules = st.builds(
        RecoveryRule,
        causes=st.lists(st.sampled_from(Cause), max_size=3).map(tuple),
        action=st.sampled_from(Recovery),
        limit=st.integers(0, 9),
        back_off=durations,
        scale=st.dictionaries(words, st.floats(0.01, 1000), max_size=2),
    )
    readings = st.builds(ClockReading, st.none() | moments, durations)
    limits = st.none() | durations
    budgets = st.builds(Budgets, limits, limits, limits, limits, limits)
    supervisions = st.builds(
        Supervision,
        budgets=budgets,
        policy=st.builds(RecoveryPolicy, st.lists(rules, max_size=3).map(tuple)),
        on_timeout=st.sampled_from(OnTimeout),
        on_unfittable=st.sampled_from(OnUnfittable),
        used_rules=st.lists(st.integers(0, 3), max_size=3).map(tuple),
        deadline=st.none() | moments,
    )
    findings = st.deferred(lambda: st.from_type(Finding))
    known = {
        datetime: moments,
        timedelta: durations,
        float: numbers,
        JobSpec: flat_specs(),
        RecoveryRule: rules,
        RecoveryStep: st.builds(RecoveryStep, st.sampled_from(Recovery), st.none() | st.integers(0, 9), durations),
        ClockReading: readings,
        Clocks: st.builds(Clocks, readings, readings, readings, readings, readings),
        Budgets: budgets,
        Supervision: supervisions,
        Preflight: st.builds(
            Preflight,
            st.dictionaries(words, findings, max_size=2),
            st.dictionaries(st.sampled_from(Capability), findings, max_size=2),
            st.none() | moments,
        ),
    }
    for kind, strategy in known.items():
        st.register_type_strategy(kind, strategy)
    # Left to infer, a field is drawn by what is registered at that time: none depends on the order here.
    for kind in (Decision, Evidence, Gates, Hold, HoldRequest, Identity, JobEvent, JobRef, JobSelector, Observation):
        st.register_type_strategy(kind, st.builds(kind, **_every_field(kind)))
    for kind in (Pending, Progress, StartRequest, SubmissionRecord):
        st.register_type_strategy(kind, st.builds(kind, **_every_field(kind)))


def _every_field(kind: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("submission", "a", "j"), st.integers(1, 1000))
    special = {**counts, "job": job_ids, "result": plain_json, "labels": st.dictionaries(words, words, max_size=2)}
    return {name: special.get(name, ...) for name in kind.__dataclass_fields__}


register()
