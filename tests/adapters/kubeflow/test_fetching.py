# SPDX-License-Identifier: Apache-2.0
"""The objects of one submission: all of them, none of another's, in few requests."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.identity import build_job_id, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from tests.adapters.kubeflow.api_server import ApiServer, run

NS = "dispatch"
JOB = build_job_id(0, b"0123456789")
OTHER = build_job_id(0, b"abcdefghij")


def add_submission(server: ApiServer, job=JOB, number=1, *, is_labelled=True):
    """A submission with a pod, as Trainer, JobSet and Kueue leave it; the ref of it."""
    name, metadata = build_object_name(job, number), {"annotations": {words.SPEC_ANNOTATION: "{}"}}
    labels = {words.JOB_LABEL: job.lower(), words.SUBMISSION_LABEL: str(number)}
    trainjob = server.put(TRAINJOBS, name, NS, labels=labels, metadata=metadata if is_labelled else {})
    owners = {"ownerReferences": [{"kind": "TrainJob", "name": name, "uid": fields.uid(trainjob), "controller": True}]}
    uid_label = {words.JOB_UID_LABEL: fields.uid(trainjob)}
    server.put(WORKLOADS, f"trainjob-{name}", NS, labels=uid_label, metadata=owners)
    beneath = labels if is_labelled else {}
    server.put(JOBSETS, name, NS, labels=beneath, metadata=owners)
    server.put(JOBS, f"{name}-node-0", NS, labels=beneath | {words.JOBSET_NAME_LABEL: name})
    server.put(PODS, f"{name}-node-0-0", NS, labels=beneath | {words.JOBSET_NAME_LABEL: name})
    return JobRef(job, number, words.BACKEND, NS, fields.uid(trainjob))


def names(found: ObjectSet):
    single = (found.trainjob, found.workload, found.jobset, found.ledger)
    return [fields.name(raw) for raw in (*single, *found.jobs, *found.pods, *found.events)]


@pytest.fixture
def fetch(tmp_path):
    """Fetches from a server that *prepare* has filled; the objects and the paths that were asked."""

    def enter(prepare, choose=lambda ref: ref, **options):
        async def scenario():
            async with ApiServer() as server:
                target = choose(prepare(server))
                settings = KubeflowSettings(namespace=NS, kubeconfig=server.write_kubeconfig(tmp_path))
                async with await open_client(settings) as client:
                    return await fetch_objects(client, NS, target, **options), [seen.path for seen in server.seen]

        return run(scenario())

    return enter


EXPECTED = ["{0}", "trainjob-{0}", "{0}", "", "{0}-node-0", "{0}-node-0-0"]


def expect(number):
    return [name.format(build_object_name(JOB, number)) for name in EXPECTED]


def test_a_submission_is_found_by_five_requests_among_others(fetch):
    def prepare(server):
        refs = [add_submission(server, JOB, number) for number in (1, 2)]
        add_submission(server, OTHER)
        return refs[0]

    found, asked = fetch(prepare)
    assert names(found) == expect(1)
    assert len(asked) == 5


def test_a_bare_id_means_the_newest_submission(fetch):
    found, asked = fetch(lambda server: [add_submission(server, JOB, number) for number in (1, 10, 9)], lambda _: JOB)
    assert names(found) == expect(10)
    assert len(asked) == 5


def test_a_trainjob_of_another_uid_is_somebody_elses(fetch):
    def prepare(server):
        ref = add_submission(server)
        server.remove(TRAINJOBS, build_object_name(JOB, 1), NS)
        server.remove(JOBSETS, build_object_name(JOB, 1), NS)
        add_submission(server)
        return ref

    found, _ = fetch(prepare)
    assert (found.trainjob, found.jobset) == (None, None)


def test_the_ledger_is_read_once_the_trainjob_is_gone(fetch):
    def prepare(server):
        ref = add_submission(server)
        server.remove(TRAINJOBS, build_object_name(JOB, 1), NS)
        server.put(CONFIG_MAPS, f"dj-{JOB.lower()}", NS)
        return ref

    found, asked = fetch(prepare)
    assert found.trainjob is None
    assert fields.name(found.ledger) == f"dj-{JOB.lower()}"
    assert [fields.name(pod) for pod in found.pods] == [f"{build_object_name(JOB, 1)}-node-0-0"]
    assert len(asked) == 6


def test_nothing_at_all_is_an_empty_set(fetch):
    found, _ = fetch(lambda server: JOB)
    assert found == ObjectSet(NS)


def test_objects_of_another_implementation_are_found_by_their_owner(fetch):
    found, _ = fetch(lambda server: add_submission(server, is_labelled=False))
    assert names(found) == expect(1)


def test_a_cluster_without_kueue_has_no_workloads(fetch):
    def prepare(server):
        server.served = {"trainjobs", "jobsets", "jobs", "pods"}
        return add_submission(server)

    found, _ = fetch(prepare)
    assert found.workload is None
    assert found.trainjob is not None


def test_events_are_read_when_asked_for(fetch):
    def prepare(server):
        ref = add_submission(server)
        server.put(EVENTS, "mine", NS, involvedObject={"uid": ref.uid, "name": build_object_name(JOB, 1)})
        server.put(EVENTS, "of-an-earlier-one", NS, involvedObject={"uid": "x", "name": build_object_name(JOB, 1)})
        return ref

    found, asked = fetch(prepare, with_events=True)
    assert [fields.name(event) for event in found.events] == ["mine"]
    assert len(asked) == 8
