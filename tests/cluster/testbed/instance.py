# SPDX-License-Identifier: Apache-2.0
"""One running testbed, from entering the context until leaving it::

    with Testbed() as bed:
        subprocess.run(["kubectl", "--kubeconfig", bed.kubeconfig, "get", "nodes"])
        bed.pause("node-2")

Builds what is missing, starts all parts, and clears everything away again, also what a crashed instance left before.
Several instances run side by side. Needs root, as containers do.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_provider_dispatch.testing.guarded_processes import GuardError
from tests.cluster.testbed import control_plane, controllers, fake_nodes, pins
from tests.cluster.testbed.api import ApiError
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.build import Builder
from tests.cluster.testbed.controller_image import load_controller_image
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.image import ensure_images
from tests.cluster.testbed.layout import PORT_NAMES, Layout, require_fixed_ports
from tests.cluster.testbed.leftovers import NODE_NAMES, clear_instance, remove_folder
from tests.cluster.testbed.node import Node
from tests.cluster.testbed.objects import build_bare_objects, build_shared_objects
from tests.cluster.testbed.slots import SLOTS, Holder, Slot, SlotLock, has_foreign_addresses, list_used, lock_slot
from tests.cluster.testbed.store import ensure_store
from tests.cluster.testbed.supervisor import READY_TIMEOUT_SECONDS, Supervisor

WEBHOOK_PATIENCE_SECONDS = 20.0


class Testbed(Bed):
    """:param kueue: settings laid over the testbed's own, for instance ``{"waitForPodsReady": {"timeout": "30s"}}``.
    :param is_bare: without what `dispatch setup` and `dispatch queue create` make.
    :param keep_logs_in: a folder that gets the logs of an instance that failed; None: they are lost.
    :param is_background: it is to run until it is taken down, and says so in the list of instances.
    :param number: of the instance; None for the next free one.
    """

    __test__ = False  # not a test, whatever pytest thinks of its name

    def __init__(
        self,
        *,
        kueue: Mapping[str, Any] | None = None,
        is_bare: bool = False,
        cache: Path | None = None,
        keep_logs_in: Path | None = None,
        is_background: bool = False,
        number: int | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        self._cache = cache or pins.find_cache()
        self._builder = Builder(self._cache, report=report)
        self._kueue_settings = dict(kueue or {})
        self._is_bare = is_bare
        self._keep_logs_in = keep_logs_in
        self._is_background = is_background
        self._numbers = range(SLOTS) if number is None else [number]
        self._report = report
        self._fake_nodes = 0
        self._lock: SlotLock | None = None
        self._supervisor: Supervisor | None = None
        # Known when it has a slot.
        super().__init__(self._cache / "instances")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(has_failed=kind is not None)

    @property
    def components(self) -> Supervisor:
        if self._supervisor is None:
            raise TestbedError("this testbed isn't running: enter its context first")
        return self._supervisor

    def pause(self, node: str) -> None:
        for name in reversed(self._find_node(node).component_names):
            self.components.send_signal(name, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        for name in self._find_node(node).component_names:
            if self.components.is_running(name):
                self.components.send_signal(name, signal.SIGCONT)
            else:
                self.components.start_again(name)
                self.components.wait_ready(name)
        self._wait_node(node)

    def lose(self, node: str) -> None:
        for name in reversed(self._find_node(node).component_names):
            self.components.stop(name)
        self._nodes[node].kill_pods()
        self.api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})

    def start_component(self, name: str) -> None:
        self.components.start_again(name)
        self.components.wait_ready(name)
        # A controller that can't reach the API server ends in the end, and on a cluster would be started again.
        for ended in self.components.find_ended():
            self.components.start_again(ended)
            self.components.wait_ready(ended)

    def stop_component(self, name: str) -> None:
        self.components.stop(name)

    def configure_kueue(self, wishes: Mapping[str, Any]) -> None:
        self.components.stop("kueue")
        self.components.start(controllers.build_kueue(self._layout, wishes))
        self.components.wait_ready("kueue")

    def load_controller_image(self) -> str:
        return load_controller_image(self.folder, self._builder)

    def add_fake_nodes(self, count: int) -> None:
        program = self._builder.ensure_binary(pins.FAKE_NODES)
        manifests = self._builder.ensure_manifests(pins.FAKE_NODE_MANIFESTS)
        self.components.start(fake_nodes.build_kwok(self._layout, program, manifests))
        self.components.wait_ready("kwok")
        self.api.apply(*fake_nodes.build_nodes(self._fake_nodes, count))
        for number in range(self._fake_nodes, self._fake_nodes + count):
            self._wait_node(f"fake-{number}")
        self._fake_nodes += count

    def start(self) -> None:
        """Build what is missing and start everything; all nodes are Ready when this returns.

        :raises TestbedError: it can't be had here; nothing is left of it.
        """
        try:
            self._start()
        except (OSError, ApiError, GuardError) as error:  # a full disk, a part that did not answer
            self.close(has_failed=True)
            raise TestbedError(f"the testbed could not be started: {describe(error)}") from error
        except TestbedError:
            self.close(has_failed=True)
            raise
        except BaseException:  # Ctrl-C, and nobody asks why it failed
            self.close()
            raise

    def close(self, *, has_failed: bool = False) -> None:
        """End and clear everything. May be called again.

        :param has_failed: keep the logs.
        """
        if self._lock is None:
            return
        try:
            if self._supervisor is not None:
                with suppress(GuardError):  # what it couldn't end is found again below
                    self._supervisor.close()
            if has_failed and self._keep_logs_in is not None and any((self.folder / "log").glob("*")):
                self._report(keep_logs(self.folder / "log", self._keep_logs_in, self._lock.slot))
            clear_instance(self.folder, self._lock.slot)
            remove_folder(self.folder)
            self._lock.clear()
        finally:
            self._lock.close()
            self._lock = None

    def _start(self) -> None:
        require_root()
        began = time.monotonic()
        programs, manifests, store = self._build()
        self._report(f"all parts are built ({time.monotonic() - began:.0f} s)")
        began = time.monotonic()
        self._lock = self._take_slot()
        slot = self._lock.slot
        self.folder = self._cache / "instances" / str(slot.number)
        self._layout = Layout(self.folder, slot, slot.find_ports(PORT_NAMES), programs, manifests)
        self._nodes = {name: Node(self._layout, name) for name in NODE_NAMES}
        self._prepare_folder(self._lock, store)
        self._supervisor = Supervisor(self._layout.logs)
        self._start_all()
        self._report(f"testbed {slot.number} is up ({time.monotonic() - began:.0f} s)")

    def _build(self) -> tuple[dict[str, Path], dict[str, Path], Path]:
        self._builder.ensure_packages()
        programs = {name: self._builder.ensure_binary(binary) for name, binary in pins.BINARIES.items()}
        manifests = {name: self._builder.ensure_manifests(part) for name, part in pins.MANIFESTS.items()}
        containerd = find_containerd()
        store = ensure_store(self._builder, containerd, ensure_images(self._builder))
        return programs | {"containerd": containerd}, manifests, store

    def _take_slot(self) -> SlotLock:
        try:
            clear_all_crashed()
        except TestbedError as error:  # one that can't be cleared is no obstacle to the others
            self._report(str(error))
        for number in self._numbers:
            lock = lock_slot(number)
            if lock is None:
                continue
            if lock.read_holder() is None and not has_foreign_addresses(lock.slot):
                return lock
            lock.close()
        taken = f"number {self._numbers[0]} is" if len(self._numbers) == 1 else f"all {SLOTS} numbers are"
        raise TestbedError(f"{taken} taken on this machine, by another testbed or a network with its addresses")

    def _prepare_folder(self, lock: SlotLock, store: Path) -> None:
        lock.write_holder(Holder(self.folder, os.getpid(), self._is_background))
        remove_folder(self.folder)
        self.folder.mkdir(parents=True)
        for folder in (self._layout.logs, self._layout.settings, self.shared_folder):
            folder.mkdir()
        self.shared_folder.chmod(0o1777)
        control_plane.ensure_bridge(self._layout)
        require_fixed_ports(self._layout)
        control_plane.write_credentials(self._layout)
        for node in self._nodes.values():
            node.prepare(store)

    def _start_all(self) -> None:
        """The nodes come up beside the controllers."""
        components = self.components
        components.start(control_plane.build_etcd(self._layout))
        components.start(control_plane.build_apiserver(self._layout))
        for node in self._nodes.values():
            components.start(node.build_containerd())
        with ThreadPoolExecutor() as pool:
            futures = [pool.submit(self._start_node, node) for node in self._nodes.values()]
            try:
                self._start_control_plane()
                for future in futures:
                    future.result()
            except BaseException:
                with suppress(GuardError):
                    components.close()  # or the pool would wait for nodes of a cluster that isn't to be
                raise

    def _start_control_plane(self) -> None:
        components, layout = self.components, self._layout
        components.wait_ready("etcd", "kube-apiserver")
        components.start(control_plane.build_controller_manager(layout))
        components.start(control_plane.build_scheduler(layout))
        components.start(control_plane.build_dns(layout))
        kinds = controllers.apply_kinds(layout, self.api)
        components.wait_for(
            lambda: controllers.are_served(self.api, kinds), timeout_seconds=READY_TIMEOUT_SECONDS, what="custom kinds"
        )
        parts = controllers.build_controllers(layout, self._kueue_settings)
        for part in parts:
            components.start(part)
        components.wait_ready(*(part.name for part in parts), "kube-controller-manager", "kube-scheduler")
        controllers.apply_webhooks(layout, self.api)
        shared = build_bare_objects() if self._is_bare else build_shared_objects()
        self.api.apply(*shared, patience_seconds=WEBHOOK_PATIENCE_SECONDS)

    def _start_node(self, node: Node) -> None:
        containerd, kubelet = node.component_names
        self.components.wait_ready(containerd, "kube-apiserver")
        self.components.start(node.build_kubelet())
        self.components.wait_ready(kubelet)
        self._wait_node(node.name)

    def _wait_node(self, name: str) -> None:
        self.components.wait_for(
            lambda: is_ready(self.api.find("Node", name)), timeout_seconds=READY_TIMEOUT_SECONDS, what=f"{name} Ready"
        )

    def _find_node(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except KeyError as error:
            raise TestbedError(f"there is no node {name}; there are {', '.join(self._nodes)}") from error


def require_root(user: int | None = None) -> None:
    """:param user: the number of a user; None for who runs this."""
    if (os.geteuid() if user is None else user) != 0:
        raise TestbedError("the testbed needs root: it makes containers, mounts and networks")


def keep_logs(logs: Path, kept: Path, slot: Slot) -> str:
    """Copy an instance's logs into a new folder below *kept*, and say where they are. A failed copy ends nothing."""
    # Test processes with an instance each may fail in the same second.
    target = kept / f"{time.strftime('testbed-%Y%m%d-%H%M%S')}-{slot.number}"
    try:
        shutil.copytree(logs, target, dirs_exist_ok=True)
    except OSError as error:
        return f"the logs of testbed {slot.number} could not be kept: {describe(error)}"
    return f"the logs of testbed {slot.number} are in {target}"


def describe(error: Exception) -> str:
    """In one sentence: a copied folder complains of each of its files."""
    return str(error.args[0][0][-1]) if isinstance(error, shutil.Error) else str(error)


def find_containerd() -> Path:
    """Of this machine: it comes from a package."""
    found = shutil.which("containerd")
    assert found is not None, "its package was seen to"
    return Path(found)


def clear_all_crashed() -> list[Slot]:
    """Clear what is left of instances whose harness is dead, and say which they were.

    :raises TestbedError: some could not be cleared; all others are.
    """
    cleared, complaints = [], []
    for number in list_used():
        lock = lock_slot(number)
        if lock is None:
            continue  # it runs
        try:
            if holder := lock.read_holder():
                clear_instance(holder.folder, lock.slot)
                remove_folder(holder.folder)
                lock.clear()
                cleared.append(lock.slot)
        except TestbedError as error:
            complaints.append(f"testbed {number} could not be cleared: {error}")
        finally:
            lock.close()
    if complaints:
        raise TestbedError("\n".join(complaints))
    return cleared


def is_ready(node: Any) -> bool:
    """Whether the Node object, or None, says that it is Ready."""
    conditions = node["status"].get("conditions", []) if node else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
