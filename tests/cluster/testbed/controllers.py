# SPDX-License-Identifier: Apache-2.0
"""JobSet, Trainer and Kueue: their kinds, their settings, their webhooks. Used by the instance, in this order.

They run as processes beside the API server, which therefore calls their webhooks at addresses instead of Services.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.testbed.api import Api, ApiError, Manifest, read_manifests
from tests.cluster.testbed.certificates import Authority
from tests.cluster.testbed.layout import Layout, answers
from tests.cluster.testbed.supervisor import Component

NAMESPACES = {"jobset": "jobset-system", "trainer": "kubeflow-system", "kueue": "kueue-system"}
CRDS = {
    "jobset": "config/components/crd/bases",
    "trainer": "manifests/base/crds",
    "kueue": "config/components/crd/bases",
}
WEBHOOKS = {
    "jobset": "config/components/webhook/manifests.yaml",
    "trainer": "manifests/base/webhook/manifests.yaml",
    "kueue": "config/components/webhook/manifests.yaml",
}
INTERCEPTED = {
    "jobset": frozenset({"jobsets"}),
    "trainer": frozenset({"trainjobs", "trainingruntimes", "clustertrainingruntimes"}),
    # Not pods and Deployments: one that is down would stop every pod.
    "kueue": frozenset(
        ["trainjobs", "jobsets", "jobs", "workloads", "workloads/status", "clusterqueues", "resourceflavors", "cohorts"]
    ),
}
KUEUE_METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
"""Kueue reads them there and nowhere else, and refuses to start without, even with its metrics off."""
Settings = dict[str, Any]


def apply_kinds(layout: Layout, api: Api) -> list[Manifest]:
    """The namespaces and the custom kinds, which are returned; they are served a moment later."""
    crds = [crd for name, path in CRDS.items() for crd in _read_crds(layout.manifests[name] / path)]
    names = NAMESPACES.values()
    api.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names), *crds)
    return crds


def are_served(api: Api, crds: Iterable[Manifest]) -> bool:
    """Asks for the names alone: the kinds themselves are megabytes."""
    wanted: dict[str, set[str]] = {}
    for crd in crds:
        for version in crd["spec"]["versions"]:
            if version["served"]:
                path = f"/apis/{crd['spec']['group']}/{version['name']}"
                wanted.setdefault(path, set()).add(crd["spec"]["names"]["plural"])
    try:
        return all(
            names <= {resource["name"] for resource in api.request("GET", path)["resources"]}
            for path, names in wanted.items()
        )
    except ApiError:
        return False  # nothing of that version yet


def build_controllers(layout: Layout, kueue_settings: Mapping[str, Any]) -> list[Component]:
    for name in NAMESPACES:
        _copy_certificates(layout, name)
    ensure_kueue_metrics_certificates()
    return [build_jobset(layout), build_trainer(layout), build_kueue(layout, kueue_settings)]


def build_jobset(layout: Layout) -> Component:
    settings: Settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "webhook": _build_webhook_settings(layout, "jobset"),
        "internalCertManagement": {"enable": False},
    }
    health = f"127.0.0.1:{layout.ports['jobset-health']}"
    flags = ("--leader-elect=false", "--metrics-bind-address=0", f"--health-probe-bind-address={health}")
    return _build_component(layout, "jobset", settings, flags)


def build_trainer(layout: Layout) -> Component:
    settings: Settings = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": layout.ports["trainer-webhook"]},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{layout.ports['trainer-health']}"},
        "certManagement": {"enable": False},
    }
    return _build_component(layout, "trainer", settings)


def build_kueue(layout: Layout, wishes: Mapping[str, Any]) -> Component:
    """:param wishes: settings that are laid over ours, for instance ``{"waitForPodsReady": {"timeout": "30s"}}``."""
    settings: Settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACES["kueue"],
        "webhook": _build_webhook_settings(layout, "kueue"),
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{layout.ports['kueue-health']}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "manageJobsWithoutQueueName": False,
        "integrations": {"frameworks": ["trainer.kubeflow.org/trainjob", "jobset.x-k8s.io/jobset", "batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    return _build_component(layout, "kueue", merge(settings, wishes))


def apply_webhooks(layout: Layout, api: Api) -> None:
    """Last of all: from now on an object is refused while its controller is down."""
    bundle = base64.b64encode((layout.certificates / "ca.crt").read_bytes()).decode()
    for name, path in WEBHOOKS.items():
        for manifest in read_manifests([layout.manifests[name] / path]):
            if "webhooks" in manifest:
                url = f"https://127.0.0.1:{layout.ports[f'{name}-webhook']}"
                api.apply(build_webhooks(manifest, name, url, bundle))


def build_webhooks(manifest: Manifest, name: str, url: str, bundle: str) -> Manifest:
    """The same configuration with those webhooks alone that we run, at their addresses."""
    kept = [
        webhook | {"clientConfig": {"url": url + webhook["clientConfig"]["service"]["path"], "caBundle": bundle}}
        for webhook in manifest["webhooks"]
        if INTERCEPTED[name].intersection(resource for rule in webhook["rules"] for resource in rule["resources"])
    ]
    what = manifest["kind"].removesuffix("WebhookConfiguration").lower()
    return manifest | {"metadata": {"name": f"{name}-{what}"}, "webhooks": kept}


def merge(settings: Mapping[str, Any], wishes: Mapping[str, Any]) -> Settings:
    """*wishes* over *settings*, at every depth; a wish that is None takes the key away."""
    merged = dict(settings)
    for key, wish in wishes.items():
        old = merged.get(key)
        if wish is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(old, wish) if isinstance(old, Mapping) and isinstance(wish, Mapping) else wish
    return merged


def ensure_kueue_metrics_certificates(target: Path = KUEUE_METRICS_CERTIFICATES) -> None:
    """The one thing outside the instance's folder that stays: any certificate does, so all instances share it."""
    if (target / "tls.key").exists() and (target / "tls.crt").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    unfinished = target / f".{secrets.token_hex(4)}"
    pair = Authority(unfinished).issue("kueue-metrics")
    os.replace(pair.certificate, target / "tls.crt")
    os.replace(pair.key, target / "tls.key")
    (unfinished / "ca.crt").unlink()
    unfinished.rmdir()


def _build_component(layout: Layout, name: str, settings: Settings, flags: tuple[str, ...] = ()) -> Component:
    config = layout.write_settings(f"{name}.yaml", settings)
    argv = (layout.program(name), f"--kubeconfig={layout.kubeconfig_of(name)}", f"--config={config}", *flags)
    health = f"http://127.0.0.1:{layout.ports[f'{name}-health']}/readyz"
    # Trainer has no setting for its certificates: it looks in the folder for temporary files.
    return Component(name, argv, partial(answers, health), {"TMPDIR": str(layout.folder / name)})


def _build_webhook_settings(layout: Layout, name: str) -> Settings:
    return {
        "host": "127.0.0.1",
        "port": layout.ports[f"{name}-webhook"],
        "certDir": str(_certificates_of(layout, name)),
    }


def _certificates_of(layout: Layout, name: str) -> Path:
    return layout.folder / name / "k8s-webhook-server" / "serving-certs"


def _copy_certificates(layout: Layout, name: str) -> None:
    target = _certificates_of(layout, name)
    target.mkdir(parents=True, exist_ok=True)
    for suffix in ("crt", "key"):
        (target / f"tls.{suffix}").write_bytes((layout.certificates / f"webhook.{suffix}").read_bytes())


def _read_crds(folder: Path) -> list[Manifest]:
    manifests = read_manifests(sorted(folder.glob("*.yaml")))
    return [manifest for manifest in manifests if manifest.get("kind") == "CustomResourceDefinition"]
