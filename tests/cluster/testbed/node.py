# SPDX-License-Identifier: Apache-2.0
"""One node: a containerd and a kubelet of its own, whose pods are real. Used by the instance.

Knows its files, its components and its cgroup tree; what happens to it (paused, lost) is the instance's business.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.testbed import cgroups
from tests.cluster.testbed.layout import Layout, answers
from tests.cluster.testbed.leftovers import find_processes, remove_shim_sockets
from tests.cluster.testbed.pins import PAUSE_IMAGE
from tests.cluster.testbed.store import clone_store, containerd_answers
from tests.cluster.testbed.supervisor import Component

CNI_PROGRAMS = "/usr/lib/cni"
MAX_PODS = 200


def build_socket_path(folder: Path) -> Path:
    """Of the containerd of the node whose folder that is."""
    return folder / "containerd.sock"


@dataclass(frozen=True, slots=True)
class Node:
    layout: Layout
    name: str

    @property
    def folder(self) -> Path:
        return self.layout.folder / self.name

    @property
    def socket(self) -> Path:
        return build_socket_path(self.folder)

    @property
    def component_names(self) -> tuple[str, str]:
        """Of containerd and kubelet, in the order in which they start."""
        return f"containerd-{self.name}", f"kubelet-{self.name}"

    def prepare(self, store: Path) -> None:
        """Folders, images, settings and cgroups; both nodes share the network and the addresses in it."""
        self.folder.mkdir()
        clone_store(store, self.folder / "containerd-root")
        cgroups.ensure(self.layout.slot.cgroup(self.name))
        network = self.layout.folder / "cni"
        network.mkdir(exist_ok=True)
        (network / "10-bridge.conflist").write_text(json.dumps(self._build_network()))
        (self.layout.settings / f"containerd-{self.name}.toml").write_text(self._build_containerd_settings())
        self.layout.write_settings(f"kubelet-{self.name}.yaml", self._build_kubelet_settings())

    def build_containerd(self) -> Component:
        settings = self.layout.settings / f"containerd-{self.name}.toml"
        argv = (self.layout.program("containerd"), "--config", str(settings))
        return Component(self.component_names[0], argv, partial(containerd_answers, self.socket))

    def build_kubelet(self) -> Component:
        flags = {
            "config": self.layout.settings / f"kubelet-{self.name}.yaml",
            "kubeconfig": self.layout.kubeconfig_of(f"kubelet-{self.name}"),
            "hostname-override": self.name,
            "node-ip": self.layout.slot.gateway,
            "root-dir": self.folder / "kubelet",
            "cert-dir": self.folder / "certificates",
        }
        argv = (self.layout.program("kubelet"), *(f"--{name}={value}" for name, value in flags.items()))
        health = f"http://127.0.0.1:{self.layout.ports[f'kubelet-health-{self.name}']}/healthz"
        return Component(self.component_names[1], argv, partial(answers, health))

    def kill_pods(self) -> None:
        """End all containers and what watches over them, as a power cut would. Its containerd is gone already."""
        for pid in {*cgroups.find_pids(self.layout.slot.cgroup(self.name)), *find_processes(self.folder)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Containerd forgets where they are when it finds the shims dead.
        remove_shim_sockets(self.folder)

    def _build_network(self) -> dict[str, Any]:
        slot, folder = self.layout.slot, self.layout.folder
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": str(slot.subnet), "gateway": slot.gateway}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(folder / "cni-addresses"),
        }
        bridge = {"type": "bridge", "bridge": slot.bridge, "isGateway": True, "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": slot.bridge, "plugins": [bridge]}

    def _build_containerd_settings(self) -> str:
        """Everything below the instance's folder, so that a crash leaves nothing elsewhere.

        ``restrict_oom_score_adj``: without the right to lower it, as in many containers, no sandbox would start.
        """
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""\
version = 2
root = "{self.folder}/containerd-root"
state = "{self.folder}/containerd-state"
[grpc]
  address = "{self.socket}"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[{cri}.cni]
  bin_dir = "{CNI_PROGRAMS}"
  conf_dir = "{self.layout.folder}/cni"
[{cri}.containerd]
  snapshotter = "overlayfs"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
  Root = "{self.folder}/runc"
"""

    def _build_kubelet_settings(self) -> dict[str, Any]:
        authority = str(self.layout.certificates / "ca.crt")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "x509": {"clientCAFile": authority},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "address": self.layout.slot.gateway,
            "port": self.layout.ports[f"kubelet-{self.name}"],
            "healthzPort": self.layout.ports[f"kubelet-health-{self.name}"],
            "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.layout.slot.cgroup(self.name)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [self.layout.slot.gateway],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "evictionHard": {"memory.available": "100Mi"},  # a full disk is the developer's business
            "imageGCHighThresholdPercent": 100,  # there is no registry to fetch an image from again
            "maxPods": MAX_PODS,
            "podLogsDir": str(self.folder / "pod-logs"),
            "nodeStatusUpdateFrequency": "2s",
        }
