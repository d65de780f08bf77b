# SPDX-License-Identifier: Apache-2.0
"""What the testbed is made of, at which versions, and under which key each part lies in the cache.

The versions themselves stand in ``modules/*/go.mod``. Read by all that builds or starts a part; builds nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODULES_FOLDER = Path(__file__).with_name("modules")
KUBERNETES = "k8s.io/kubernetes"
JOBSET, TRAINER = "sigs.k8s.io/jobset", "github.com/kubeflow/trainer/v2"
KUEUE, KWOK = "sigs.k8s.io/kueue", "sigs.k8s.io/kwok"
STRIPPED = "-s -w"


@dataclass(frozen=True, slots=True)
class Binary:
    """A program, and how Go builds it.

    :param module: the folder below ``modules`` that pins it.
    :param is_static: runs in a file system without a C library.
    """

    name: str
    module: str
    package: str
    ldflags: str = STRIPPED
    tags: str = ""
    is_static: bool = False


@dataclass(frozen=True, slots=True)
class Manifests:
    """Folders and files that are taken over from a Go module's source as they are."""

    module: str
    source: str
    paths: tuple[str, ...]


def read_version(module: str, source: str) -> str:
    """The version of the Go module *source* that the folder *module* pins, as ``v1.2.3``."""
    for line in (MODULES_FOLDER / module / "go.mod").read_text().splitlines():
        words = line.split()
        if words[:1] == [source]:
            return words[1]
    raise LookupError(f"{MODULES_FOLDER / module / 'go.mod'} does not require {source}")


def _build_kubernetes(name: str) -> Binary:
    version = read_version("kubernetes", KUBERNETES)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    wanted = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    # Built from a module, Kubernetes doesn't know its own version, and controllers ask for it.
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in wanted.items())
    return Binary(name, "kubernetes", f"{KUBERNETES}/cmd/{name}", f"{STRIPPED} {flags}")


KUBERNETES_NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
BINARIES: Mapping[str, Binary] = {
    binary.name: binary
    for binary in (
        Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        *map(_build_kubernetes, KUBERNETES_NAMES),
        Binary("coredns", "coredns", "github.com/coredns/coredns"),
        Binary("jobset", "jobset", JOBSET),
        Binary("trainer", "trainer", f"{TRAINER}/cmd/trainer-controller-manager"),
        Binary("kueue", "kueue", f"{KUEUE}/cmd/kueue", tags="exclude_scheduler_library"),
        Binary("pause", "pause", ".", is_static=True),
    )
}
FAKE_NODES = Binary("kwok", "kwok", f"{KWOK}/cmd/kwok")
"""Built only when somebody asks for fake nodes."""

MANIFESTS: Mapping[str, Manifests] = {
    "jobset": Manifests("jobset", JOBSET, ("config/components/crd/bases", "config/components/webhook")),
    "trainer": Manifests("trainer", TRAINER, ("manifests/base/crds", "manifests/base/webhook")),
    "kueue": Manifests("kueue", KUEUE, ("config/components/crd/bases", "config/components/webhook")),
}
FAKE_NODE_MANIFESTS = Manifests("kwok", KWOK, ("kustomize/stage",))

IMAGE_PACKAGES = ("python3-minimal", "python3-numpy")
TRAINER_IMAGE, PAUSE_IMAGE = "localhost/trainer:1", "localhost/pause:1"
EXAMPLES_IMAGE = "localhost/digits:1"
"""The trainer image with the programs of the example DAGs and the digits that they learn."""


def build_key(part: Binary | Manifests) -> str:
    """Changes whenever what would be built does: ``<module>-<digest>``."""
    digest = hashlib.sha256(f"{part} {platform.machine()}".encode())
    for path in sorted((MODULES_FOLDER / part.module).iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{part.module}-{digest.hexdigest()[:12]}"


def find_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built parts and running instances lie: ``$DISPATCH_TESTBED_CACHE`` or the user's cache folder."""
    if chosen := environment.get("DISPATCH_TESTBED_CACHE"):
        return Path(chosen).resolve()
    users = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(users, "dispatch-testbed").resolve()
