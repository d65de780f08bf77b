# SPDX-License-Identifier: Apache-2.0
"""Whether our check stands between a queue and an admission, and whether its controller lives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import QueueView, describe_lease, explain_unguarded
from tests.adapters.kubeflow.cluster_parts import NOW


@pytest.mark.parametrize(
    ("lease", "fresh", "said"),
    [
        (None, False, "never run"),
        ({"spec": {}}, False, "nobody holds"),
        ({"spec": {"holderIdentity": "", "renewTime": "2026-09-01T12:00:00Z"}}, False, "nobody holds"),
        ({"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:40Z"}}, True, "renewed 20 s ago"),
        ({"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:20Z"}}, False, "renewed 40 s ago"),
        (
            {"spec": {"holderIdentity": "b", "renewTime": "2026-09-01T11:59:40Z"}},
            False,
            "that is no dispatch-admission",
        ),
        (
            {"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:20Z", "leaseDurationSeconds": 20}},
            True,
            "40 s",
        ),
    ],
)
def test_a_heartbeat_counts_while_it_is_fresh_and_signed_by_its_holder(lease, fresh: bool, said: str) -> None:
    lease = lease and lease | {"metadata": {"annotations": {words.HOLDER_ANNOTATION: "a"}}}
    told = describe_lease(lease, NOW)
    assert told[0] is fresh
    assert said in told[1]
    assert describe_lease(lease, NOW + timedelta(hours=1))[0] is False


def view(entries=({"name": "ours"},), conditions=("True",), **more) -> QueueView:
    listed = {"admissionChecksStrategy": {"admissionChecks": list(entries)}}
    status = {"conditions": [{"type": "Active", "status": value, "message": "why"} for value in conditions]}
    parts: dict[str, Any] = {
        "local_queue": {"spec": {"clusterQueue": "cq"}},
        "cluster_queue": {"metadata": {"name": "cq"}, "spec": listed},
        "check": {"spec": {"controllerName": words.CONTROLLER_NAME}, "status": status},
    }
    return QueueView("lq", **(parts | more))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (view(), None),
        (view(local_queue=None), "no LocalQueue lq"),
        (view(cluster_queue=None), "ClusterQueue cq of LocalQueue lq is missing"),
        (view(entries=()), "doesn't list AdmissionCheck ours"),
        (view(entries=[{"name": "ours", "onFlavors": ["a"]}]), "take onFlavors away"),
        (view(entries=[{"name": "ours"}, {"name": "theirs"}]), "beside ours: theirs"),
        (view(check=None), "there is no AdmissionCheck ours"),
        (view(check={"spec": {"controllerName": "x"}}), "is x's"),
        (view(conditions=["False"]), "is not active: why"),
        (view(conditions=[]), "has never seen it"),
    ],
)
def test_a_queue_is_guarded_by_our_check_alone(seen: QueueView, said: str | None) -> None:
    told = explain_unguarded(seen, "ours")
    assert (told is None) if said is None else (told is not None and said in told)
