# SPDX-License-Identifier: Apache-2.0
"""A private runtime comes back out of Trainer's snapshot, and nobody else's does."""

from __future__ import annotations

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.model.runtime_snapshot import build_restored_runtime
from airflow_provider_dispatch.exceptions import ProtocolError
from tests.adapters.kubeflow.memory_client import Object
from tests.adapters.kubeflow.objects import build_owner, build_runtime, build_trainjob


def build_snapshot(text: str, owner: str = "tj-1") -> Object:
    return {
        "metadata": {"name": "snap", "ownerReferences": [build_owner("TrainJob", "x", owner)]},
        "data": {"runtime": text},
    }


OURS = yaml.safe_dump({**build_runtime(), "kind": "TrainingRuntime"})


def test_name_labels_and_spec_come_back_and_the_trainjob_owns_it() -> None:
    restored = build_restored_runtime(build_trainjob(), build_snapshot(OURS))
    assert restored is not None
    metadata = restored["metadata"]
    assert isinstance(metadata, dict)
    assert metadata.keys() == {"name", "labels", "annotations", "ownerReferences"}
    assert metadata["labels"] == build_runtime()["metadata"]["labels"]
    assert (
        metadata["ownerReferences"][0] | {"uid": "tj-1", "blockOwnerDeletion": False} == metadata["ownerReferences"][0]
    )
    assert restored["spec"] == build_runtime()["spec"]


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        build_snapshot(OURS, owner="another"),
        build_snapshot(yaml.safe_dump({**build_runtime(), "kind": "ClusterTrainingRuntime"})),
        build_snapshot("kind: TrainingRuntime"),
        build_snapshot(""),
    ],
    ids=["none", "of another TrainJob", "shared by all", "not ours", "empty"],
)
def test_what_is_no_copy_of_ours_is_not_made(snapshot: Object | None) -> None:
    assert build_restored_runtime(build_trainjob(), snapshot) is None


def test_an_unreadable_snapshot_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="snap"):
        build_restored_runtime(build_trainjob(), build_snapshot("a: [b"))
