# SPDX-License-Identifier: Apache-2.0
"""What a test may ask of a cluster, whoever runs it: this process, another one, or somebody else altogether."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.cluster.testbed.api import Api
from tests.cluster.testbed.audit import Request, read_requests
from tests.cluster.testbed.control_plane import AUDIT_LOG


class Bed(ABC):
    """A cluster with the nodes ``node-1`` and ``node-2``.

    :param folder: the instance's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def shared_folder(self) -> Path:
        """A folder of the host, which pods of both nodes can mount under the same path; anybody may write there."""
        return self.folder / "shared"

    @cached_property
    def api(self) -> Api:
        return Api(self.kubeconfig)

    def mark_requests(self) -> int:
        """The present end of the audit log, for ``since``."""
        log = self.folder / "log" / AUDIT_LOG
        return log.stat().st_size if log.exists() else 0

    def fetch_requests(self, *, user_agent_prefix: str = "", user: str = "", since: int = 0) -> list[Request]:
        """What the API server was asked, watches included when they begin.

        :param user: exactly this one; empty for everybody.
        """
        requests = read_requests(self.folder / "log" / AUDIT_LOG, since=since)
        return [
            request
            for request in requests
            if request.user_agent.startswith(user_agent_prefix) and user in {"", request.user}
        ]

    def count_requests(self, *, user_agent_prefix: str = "", user: str = "", since: int = 0) -> int:
        return len(self.fetch_requests(user_agent_prefix=user_agent_prefix, user=user, since=since))

    def read_log(self, component: str) -> str:
        """What a component has printed: ``kueue``, ``kubelet-node-1``."""
        return (self.folder / "log" / f"{component}.log").read_text(errors="replace")

    @abstractmethod
    def pause(self, node: str) -> None:
        """Let the node fall silent: its kubelet and containerd stand still, its pods run on. NotReady after 20 s."""

    @abstractmethod
    def resume(self, node: str) -> None:
        """Give a paused or lost node back, and wait until it is Ready."""

    @abstractmethod
    def lose(self, node: str) -> None:
        """Take the node away for good, as if its power was cut: no process of it is left, nor its Node object."""

    @abstractmethod
    def start_component(self, name: str) -> None:
        """Start what was stopped and wait until it is ready. What has ended for its absence is started again too."""

    @abstractmethod
    def stop_component(self, name: str) -> None:
        """Kill a component: ``etcd``, ``kube-apiserver``, ``kueue``, ``kubelet-node-1`` …"""

    def restart_component(self, name: str) -> None:
        self.stop_component(name)
        self.start_component(name)

    @abstractmethod
    def configure_kueue(self, wishes: Mapping[str, Any]) -> None:
        """Restart Kueue with these settings laid over the testbed's own, for example ``waitForPodsReady``."""

    @abstractmethod
    def load_controller_image(self) -> str:
        """Give both nodes the admission controller's image, made of this checkout; the image's name."""

    @abstractmethod
    def add_fake_nodes(self, count: int) -> None:
        """Nodes whose pods exist on paper only, besides the real ones, tainted ``kwok.x-k8s.io/node=fake``."""
