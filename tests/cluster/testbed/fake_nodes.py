# SPDX-License-Identifier: Apache-2.0
"""Nodes on paper, for thousands of pods: KWOK marks their pods as running and removes them when asked to.

Used by the instance, on demand. Pods never end by themselves, and come there only with the toleration below.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.layout import Layout, answers
from tests.cluster.testbed.supervisor import Component

KEY = "kwok.x-k8s.io/node"
TOLERATION = {"key": KEY, "operator": "Equal", "value": "fake", "effect": "NoSchedule"}
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
STAGES = ("node/fast", "node/heartbeat", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")


def build_nodes(first: int, count: int) -> Iterator[Manifest]:
    for number in itertools.islice(itertools.count(first), count):
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"fake-{number}",
                "annotations": {KEY: "fake"},
                "labels": {"type": "fake", "kubernetes.io/hostname": f"fake-{number}"},
            },
            "spec": {"taints": [{"key": KEY, "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
        }


def build_kwok(layout: Layout, program: Path, manifests: Path) -> Component:
    stages = layout.settings / "stages.yaml"
    stages.write_text("\n---\n".join(path.read_text() for path in _find_stages(manifests / "kustomize" / "stage")))
    address = f"127.0.0.1:{layout.ports['fake-nodes']}"
    argv = (
        str(program),
        f"--kubeconfig={layout.kubeconfig_of('kwok')}",
        f"--config={stages}",
        f"--manage-nodes-with-annotation-selector={KEY}=fake",
        f"--server-address={address}",
    )
    return Component("kwok", argv, partial(answers, f"http://{address}/healthz"))


def _find_stages(folder: Path) -> Iterator[Path]:
    for name in STAGES:
        path = folder / name
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        yield from (file for file in files if file.name != "kustomization.yaml")
