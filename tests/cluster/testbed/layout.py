# SPDX-License-Identifier: Apache-2.0
"""Where everything of one instance is: files, ports, programs; and how its parts ask each other whether they are up."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.slots import Slot, is_free

API_PORT = 443
"""What Service `kubernetes` says. The address is the instance's own."""
DNS_PORT = 53
PORT_NAMES = (
    "etcd",
    "etcd-peer",
    "controller-manager",
    "scheduler",
    *(f"{name}-{what}" for name in ("jobset", "trainer", "kueue") for what in ("webhook", "health")),
    *(f"{what}-node-{number}" for number in (1, 2) for what in ("kubelet", "kubelet-health")),
    "fake-nodes",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One instance.

    :param programs: name to path, of all that the testbed builds and of containerd.
    :param manifests: the folder of each controller's own manifests.
    """

    folder: Path
    slot: Slot
    ports: Mapping[str, int]
    programs: Mapping[str, Path]
    manifests: Mapping[str, Path]

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def settings(self) -> Path:
        return self.folder / "settings"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def kubeconfigs(self) -> Path:
        return self.folder / "kubeconfigs"

    @property
    def url(self) -> str:
        return f"https://{self.slot.gateway}:{API_PORT}"

    def program(self, name: str) -> str:
        return str(self.programs[name])

    def kubeconfig_of(self, user: str) -> Path:
        return self.folder / "kubeconfig" if user == "admin" else self.kubeconfigs / user

    def write_settings(self, name: str, content: Mapping[str, Any]) -> Path:
        """A component's settings; JSON is YAML too."""
        path = self.settings / name
        path.write_text(json.dumps(content, indent=1))
        return path


def require_fixed_ports(layout: Layout) -> None:
    """Those that pods know can't be others. The bridge is there already."""
    for port, whose in ((API_PORT, "API server"), (DNS_PORT, "DNS")):
        if not is_free(port, layout.slot.gateway):
            raise TestbedError(
                f"somebody listens on port {port} of every address, and the {whose} of testbed {layout.slot.number} "
                f"needs it on {layout.slot.gateway}"
            )


def answers(url: str) -> bool:
    """Somebody is there and says that he is well. Nothing secret goes over it, so nobody's name is checked."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=2, context=unchecked):
            return True
    except OSError:
        return False
