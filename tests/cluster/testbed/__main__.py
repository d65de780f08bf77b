# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cluster.testbed``: build, start, use and take down a testbed by hand."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.testbed import pins
from tests.cluster.testbed.build import Builder
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.image import ensure_images
from tests.cluster.testbed.instance import Testbed, clear_all_crashed, find_containerd
from tests.cluster.testbed.remote import AttachedBed, is_served, serve
from tests.cluster.testbed.slots import Slot, find_held, lock_slot
from tests.cluster.testbed.store import ensure_store

DOWN_TIMEOUT_SECONDS = 120.0
LAST_WORDS = "export KUBECONFIG="
REPOSITORY = Path(__file__).resolve().parents[3]
LOGS = REPOSITORY / "build" / "testbed"
Command = Callable[[argparse.Namespace], None]


def build(_: argparse.Namespace) -> None:
    """Build all that is missing, fake nodes included."""
    builder = Builder(pins.find_cache())
    builder.ensure_packages()
    for binary in (*pins.BINARIES.values(), pins.FAKE_NODES):
        builder.ensure_binary(binary)
    for manifests in (*pins.MANIFESTS.values(), pins.FAKE_NODE_MANIFESTS):
        builder.ensure_manifests(manifests)
    ensure_store(builder, find_containerd(), ensure_images(builder))


def up(_: argparse.Namespace) -> None:
    """Start a testbed that runs until it is taken down, and print where it is."""
    LOGS.mkdir(parents=True, exist_ok=True)
    complaints = LOGS / "background.log"
    with complaints.open("w") as log:
        # In a session of its own, and with nothing of this terminal: it outlives both.
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.testbed", "serve"],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if line.startswith(LAST_WORDS):
            return
    raise TestbedError(f"the testbed ended with {server.wait()}:\n{complaints.read_text()}")


def run_server(_: argparse.Namespace) -> None:
    """What ``up`` leaves in the background."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with Testbed(is_background=True, keep_logs_in=LOGS, report=say) as bed:
        say(f"node-1 and node-2 share {bed.shared_folder}")
        say(f"{LAST_WORDS}{bed.kubeconfig}")
        # Whoever listened has gone: nothing more is said.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        serve(bed, over.is_set)


def down(arguments: argparse.Namespace) -> None:
    """Take down the testbeds that run in the background, and clear what crashed ones left."""
    for slot, holder in find_held():
        if holder.is_background and arguments.instance in {None, slot.number}:  # others are part of a test
            os.kill(holder.pid, signal.SIGTERM)
            wait_released(slot)
            say(f"testbed {slot.number} is down")
    for slot in clear_all_crashed():
        say(f"cleared what was left of testbed {slot.number}")


def wait_released(slot: Slot) -> None:
    deadline = time.monotonic() + DOWN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        lock = lock_slot(slot.number)
        if lock is not None:
            lock.close()
            return
        time.sleep(0.1)
    raise TestbedError(f"testbed {slot.number} does not end")


def control(arguments: argparse.Namespace) -> None:
    """Pass one verb on to the testbed that runs in the background."""
    held = [(slot, holder) for slot, holder in find_held() if arguments.instance in {None, slot.number}]
    folders = [holder.folder for _, holder in held if holder.is_background and is_served(holder.folder)]
    if len(folders) != 1:
        raise TestbedError(f"{len(folders)} testbeds run in the background; --instance chooses one")
    bed = AttachedBed(folders[0])
    verb = arguments.command.replace("-", "_")
    getattr(bed, verb)(int(arguments.argument) if verb == "add_fake_nodes" else arguments.argument)


def say(line: str) -> None:
    print(line, flush=True)


INSTANCE_HELP = "its number, where several run in the background"
PLAIN: Mapping[str, Command] = {"build": build, "up": up, "serve": run_server, "down": down}
VERBS: Mapping[str, str] = {
    "pause": "NODE",
    "resume": "NODE",
    "lose": "NODE",
    "stop-component": "NAME",
    "start-component": "NAME",
    "restart-component": "NAME",
    "add-fake-nodes": "COUNT",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in PLAIN.items():
        plain = commands.add_parser(name, help=command.__doc__)
        if command is down:
            plain.add_argument("--instance", type=int, help=INSTANCE_HELP)
        plain.set_defaults(run=command)
    for name, metavar in VERBS.items():
        verb = commands.add_parser(name)
        verb.add_argument("argument", metavar=metavar)
        verb.add_argument("--instance", type=int, help=INSTANCE_HELP)
        verb.set_defaults(run=control)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except TestbedError as error:
        print(f"{parser.prog} {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
