# SPDX-License-Identifier: Apache-2.0
"""What is surely a probe, and when the controller may remove it: each mark counts, and nothing of a job's goes."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import format_time
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import build_probe_runtime, build_probe_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import (
    MARGIN,
    SHORTEST_LIFE,
    RemoveProbe,
    WaitForProbe,
    build_probe_until,
    decide_probe,
    is_abandoned,
    is_probe,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.identity import build_job_id
from tests.adapters.kubeflow.memory_client import Object
from tests.adapters.kubeflow.objects import NOW, build_runtime, build_trainjob

JOB = build_job_id(0, b"0123456789")
TERMS = Terms("default", "lq", is_fenced=True)
UNTIL = build_probe_until(NOW, 10.0)
SECOND = timedelta(seconds=1)


def trainjob() -> Object:
    return build_probe_trainjob(JOB, TERMS, UNTIL)


def runtime() -> Object:
    return build_probe_runtime(JOB, TERMS, UNTIL)


@pytest.mark.parametrize("build", [trainjob, runtime])
def test_what_preflight_makes_is_a_probe_and_goes_after_its_end(build: Callable[[], Object]) -> None:
    raw = build()
    assert is_probe(raw)
    assert decide_probe(raw, NOW) == WaitForProbe(UNTIL + MARGIN)
    assert decide_probe(raw, UNTIL + MARGIN - SECOND) == WaitForProbe(UNTIL + MARGIN)
    assert decide_probe(raw, UNTIL + MARGIN) == RemoveProbe(f"its preflight was over at {format_time(UNTIL)}")


def test_the_next_preflight_needs_no_margin() -> None:
    assert is_abandoned(runtime(), UNTIL + SECOND)
    assert not is_abandoned(runtime(), UNTIL)


def test_a_probe_without_a_queue_is_one_too() -> None:
    plain = Terms("default", "", is_fenced=False)
    assert is_probe(build_probe_trainjob(JOB, plain, UNTIL))
    assert is_probe(build_probe_runtime(JOB, plain, UNTIL))


def test_an_end_read_from_a_slow_clock_cuts_no_probe_short() -> None:
    raw = trainjob()
    raw["metadata"]["creationTimestamp"] = format_time(UNTIL + timedelta(hours=1))
    end = UNTIL + timedelta(hours=1) + SHORTEST_LIFE + MARGIN
    assert decide_probe(raw, end - SECOND) == WaitForProbe(end)
    assert isinstance(decide_probe(raw, end), RemoveProbe)


@pytest.mark.parametrize(
    "stamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", ""]
)
def test_an_end_that_no_preflight_has_written_marks_no_probe(stamp: str) -> None:
    raw = trainjob()
    raw["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION] = stamp
    assert not is_probe(raw)
    assert decide_probe(raw, NOW) is None
    assert not is_abandoned(raw, NOW)


def rename(raw: Object, name: str = "dj-0-s1") -> None:
    raw["metadata"]["name"] = name
    if "runtimeRef" in raw["spec"]:
        raw["spec"]["runtimeRef"]["name"] = name


def lengthen(raw: Object) -> None:
    rename(raw, raw["metadata"]["name"] + "-2")


def unlabel(raw: Object) -> None:
    del raw["metadata"]["labels"][words.KIND_LABEL]


def label_otherwise(raw: Object) -> None:
    raw["metadata"]["labels"][words.KIND_LABEL] = words.LEDGER_KIND


def take_end(raw: Object) -> None:
    del raw["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION]


def garble_end(raw: Object) -> None:
    raw["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION] = "soon"


def change_kind(raw: Object) -> None:
    raw["kind"] = "Workload"


def give_to_a_job(raw: Object) -> None:
    raw["metadata"]["labels"][words.JOB_LABEL] = build_job_id(1, b"9876543210").lower()


def open_gate(raw: Object) -> None:
    del raw["metadata"]["annotations"][words.ADMISSION_GATED_BY]


def add_gate(raw: Object) -> None:
    raw["metadata"]["annotations"][words.ADMISSION_GATED_BY] += f",{words.NOT_BEFORE_GATE}"


def run_by_another(raw: Object) -> None:
    raw["spec"]["runtimeRef"]["name"] = "plain"


def run_by_the_clusters(raw: Object) -> None:
    raw["spec"]["runtimeRef"]["kind"] = "ClusterTrainingRuntime"


def lead_somewhere(raw: Object) -> None:
    role = raw["spec"]["template"]["spec"]["replicatedJobs"][0]
    del role["template"]["spec"]["template"]["spec"]["nodeSelector"]


def have_no_roles(raw: Object) -> None:
    raw["spec"]["template"]["spec"]["replicatedJobs"] = []


def be_nobodys(raw: Object) -> None:
    del raw["metadata"]["labels"][words.JOB_LABEL]


EITHER = [rename, lengthen, unlabel, label_otherwise, take_end, garble_end, change_kind, give_to_a_job]
OF_TRAINJOBS = [open_gate, add_gate, run_by_another, run_by_the_clusters]
OF_RUNTIMES = [lead_somewhere, have_no_roles, be_nobodys]


@pytest.mark.parametrize(
    ("build", "change"),
    [
        *((build, change) for build in (trainjob, runtime) for change in EITHER),
        *((trainjob, change) for change in OF_TRAINJOBS),
        *((runtime, change) for change in OF_RUNTIMES),
    ],
)
def test_what_lacks_one_mark_stays_for_ever(build: Callable[[], Object], change: Callable[[Object], None]) -> None:
    raw = build()
    change(raw)
    later = UNTIL + timedelta(days=365)
    assert decide_probe(raw, later) is None
    assert not is_abandoned(raw, later)


@pytest.mark.parametrize("build", [trainjob, runtime])
def test_what_is_on_its_way_out_needs_nobody(build: Callable[[], Object]) -> None:
    raw = build()
    raw["metadata"]["deletionTimestamp"] = format_time(NOW)
    assert decide_probe(raw, UNTIL + MARGIN) is None


@pytest.mark.parametrize("raw", [build_trainjob(), build_runtime()])
def test_no_job_is_taken_for_a_probe_although_it_is_marked(raw: Object) -> None:
    raw["metadata"]["labels"][words.KIND_LABEL] = words.PROBE_KIND
    raw["metadata"]["annotations"] = {words.PROBE_UNTIL_ANNOTATION: format_time(NOW - timedelta(days=1))}
    assert not is_probe(raw)
    assert not is_abandoned(raw, NOW)
    assert decide_probe(raw, NOW) is None
