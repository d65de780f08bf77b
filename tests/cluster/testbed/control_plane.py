# SPDX-License-Identifier: Apache-2.0
"""Kubernetes without nodes: etcd, API server, controller manager, scheduler, cluster DNS. Used by the instance.

Says what to start and prepares the files for it; starts nothing. Every component has a user of its own, so that the
audit log tells who asked.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from functools import partial

from tests.cluster.testbed.build import run_to_end
from tests.cluster.testbed.certificates import Authority, write_signing_keys
from tests.cluster.testbed.layout import API_PORT, Layout, answers
from tests.cluster.testbed.supervisor import Component

USERS = (
    "admin",
    "kube-controller-manager",
    "kube-scheduler",
    "coredns",
    "kubelet-node-1",
    "kubelet-node-2",
    "jobset",
    "trainer",
    "kueue",
    "kwok",
)
AUDIT_LOG = "audit.log"
SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
"""Of the API server, as pods know it."""
NODE_MONITOR_GRACE_SECONDS = 20
"""A silent node is NotReady after this."""


def write_credentials(layout: Layout) -> None:
    """Certificates, a token for each user, and the kubeconfigs that hold them."""
    authority = Authority(layout.certificates)
    authority.issue("apiserver", hosts=["127.0.0.1", "localhost", layout.slot.gateway, *SERVICE_NAMES])
    authority.issue("webhook", hosts=["127.0.0.1", "localhost"])
    # The group of the masters: what the API server asks of a kubelet (logs, exec) is not what we test.
    authority.issue("kubelet-client", organization="system:masters")
    write_signing_keys(layout.certificates)
    tokens = {user: secrets.token_hex(16) for user in USERS}
    rows = [f'{token},{user},{user},"system:masters"' for user, token in tokens.items()]
    (layout.certificates / "tokens.csv").write_text("\n".join(rows) + "\n")
    layout.kubeconfigs.mkdir(exist_ok=True)
    for user, token in tokens.items():
        path = layout.kubeconfig_of(user)
        path.touch(mode=0o600)
        path.write_text(build_kubeconfig(layout, user, token, authority.certificate.read_bytes()))


def build_kubeconfig(layout: Layout, user: str, token: str, authority: bytes) -> str:
    trusted = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": layout.url, "certificate-authority-data": trusted}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "current-context": "testbed",
    }
    return json.dumps(config, indent=1)


def ensure_bridge(layout: Layout) -> None:
    """The network of the pods. The host has an address in it, which nodes, API server and DNS use."""
    bridge, prefix = layout.slot.bridge, layout.slot.subnet.prefixlen
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, check=False)  # if it's missing
    run_to_end(["ip", "link", "set", bridge, "up"])
    run_to_end(["ip", "address", "replace", f"{layout.slot.gateway}/{prefix}", "dev", bridge])


def build_etcd(layout: Layout) -> Component:
    client, peer = (f"http://127.0.0.1:{layout.ports[name]}" for name in ("etcd", "etcd-peer"))
    flags = {
        "data-dir": layout.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
    }
    # Nobody needs the data after a power cut, and syncing each write would be most of the time.
    argv = [layout.program("etcd"), *build_flags(flags), "--unsafe-no-fsync"]
    return Component("etcd", tuple(argv), partial(answers, f"{client}/health"))


def build_apiserver(layout: Layout) -> Component:
    pki = layout.certificates
    policy = layout.write_settings(
        "audit-policy.yaml",
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
                {"level": "Metadata"},
            ],
        },
    )
    flags = {
        "etcd-servers": f"http://127.0.0.1:{layout.ports['etcd']}",
        "bind-address": layout.slot.gateway,
        "advertise-address": layout.slot.gateway,
        "secure-port": API_PORT,
        # The first address is that of Service `kubernetes`: ours, so that pods reach it without any translation.
        "service-cluster-ip-range": layout.slot.subnet,
        "endpoint-reconciler-type": "none",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "service-accounts.pub",
        "service-account-signing-key-file": pki / "service-accounts.key",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "cert-dir": layout.folder / "generated",
        "token-auth-file": pki / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "audit-policy-file": policy,
        "audit-log-path": layout.logs / AUDIT_LOG,
    }
    argv = [layout.program("kube-apiserver"), *build_flags(flags)]
    return Component("kube-apiserver", tuple(argv), partial(answers, f"{layout.url}/readyz"))


def build_controller_manager(layout: Layout) -> Component:
    flags = {
        "service-account-private-key-file": layout.certificates / "service-accounts.key",
        "root-ca-file": layout.certificates / "ca.crt",
        "use-service-account-credentials": "true",
        "allocate-node-cidrs": "false",
        "node-monitor-grace-period": f"{NODE_MONITOR_GRACE_SECONDS}s",
    }
    return _build_manager(layout, "kube-controller-manager", "controller-manager", flags)


def build_scheduler(layout: Layout) -> Component:
    return _build_manager(layout, "kube-scheduler", "scheduler", {})


def _build_manager(layout: Layout, name: str, port: str, flags: dict[str, object]) -> Component:
    kubeconfig = layout.kubeconfig_of(name)
    shared = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "secure-port": layout.ports[port],
        "cert-dir": layout.folder / "generated",
        "kube-api-qps": 200,
        "kube-api-burst": 400,
    }
    argv = [layout.program(name), *build_flags(shared | flags)]
    return Component(name, tuple(argv), partial(answers, f"https://127.0.0.1:{layout.ports[port]}/healthz"))


def build_dns(layout: Layout) -> Component:
    corefile = layout.settings / "Corefile"
    corefile.write_text(
        f".:53 {{\n bind {layout.slot.gateway}\n errors\n kubernetes cluster.local {{\n"
        f"  kubeconfig {layout.kubeconfig_of('coredns')}\n  ttl 1\n }}\n cache 1\n}}\n"
    )
    # It answers as soon as it listens, and then waits for its first list: nobody asks it before a pod runs.
    return Component("coredns", (layout.program("coredns"), "-conf", str(corefile)), lambda: True)


def build_flags(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
