# SPDX-License-Identifier: Apache-2.0
"""Somebody else's cluster, such as kind, with Kueue, JobSet and Trainer installed: tests run there as far as they can.

What it can't do skips the test that asks for it, with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.cluster.testbed.audit import Request
from tests.cluster.testbed.bed import Bed


class ForeignBed(Bed):
    """:param kubeconfig: its current context is an administrator of the cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig.parent)
        self._kubeconfig = kubeconfig

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def shared_folder(self) -> Path:
        """``$DISPATCH_TEST_SHARED_FOLDER``: under the same path on this machine and on all nodes."""
        chosen = os.environ.get("DISPATCH_TEST_SHARED_FOLDER")
        if chosen is None:
            _skip("has no folder that it shares with this machine (DISPATCH_TEST_SHARED_FOLDER)")
        return Path(chosen)

    def mark_requests(self) -> int:
        _skip("shows no audit log")

    def fetch_requests(self, *, user_agent_prefix: str = "", user: str = "", since: int = 0) -> list[Request]:
        _skip("shows no audit log")

    def read_log(self, component: str) -> str:
        _skip(f"shows no log of {component}")

    def pause(self, node: str) -> None:
        _skip(f"can't pause {node}")

    def resume(self, node: str) -> None:
        _skip(f"can't pause and resume {node}")

    def lose(self, node: str) -> None:
        _skip(f"can't lose {node}")

    def start_component(self, name: str) -> None:
        _skip(f"can't start {name}")

    def stop_component(self, name: str) -> None:
        _skip(f"can't stop {name}")

    def configure_kueue(self, wishes: Mapping[str, Any]) -> None:
        _skip(f"can't set {', '.join(wishes)} of Kueue")

    def load_controller_image(self) -> str:
        _skip("can't be given the controller's image")

    def add_fake_nodes(self, count: int) -> None:
        _skip("has no fake nodes")


def _skip(reason: str) -> NoReturn:
    pytest.skip(f"the cluster of DISPATCH_TEST_KUBECONFIG {reason}")
