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
from tempfile import TemporaryFile

from tests.cluster.testbed import pins
from tests.cluster.testbed.build import Builder
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.image import ensure_images
from tests.cluster.testbed.instance import Testbed, clear_all_crashed, find_containerd, require_root
from tests.cluster.testbed.remote import AttachedBed, is_served, serve
from tests.cluster.testbed.slots import Slot, ask_to_end, find_held, lock_slot
from tests.cluster.testbed.store import ensure_store

DOWN_TIMEOUT_SECONDS = 120.0
INTERRUPTED = 128 + signal.SIGINT
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


def up(arguments: argparse.Namespace) -> None:
    """Start a testbed that runs until it is taken down, and print where it is."""
    chosen = [] if arguments.instance is None else ["--instance", str(arguments.instance)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with TemporaryFile("w+") as complaints:
        # In a session of its own, and with nothing of this terminal: it outlives both.
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.testbed", "serve", *chosen],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        )
        try:
            is_up = repeat_words(server)
        except BaseException:  # Ctrl-C, or nobody reads what we print
            server.terminate()
            server.wait(DOWN_TIMEOUT_SECONDS)
            raise
        if not is_up:
            status = server.wait()
            complaints.seek(0)
            raise TestbedError(complaints.read().strip() or f"the testbed ended with {status}")


def repeat_words(server: subprocess.Popen[str]) -> bool:
    """Print what it says until its last words; whether these came."""
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if line.startswith(LAST_WORDS):
            return True
    return False


def run_server(arguments: argparse.Namespace) -> None:
    """What ``up`` leaves in the background."""
    order = EndOrder()
    signal.signal(signal.SIGTERM, order.take)
    with Testbed(is_background=True, number=arguments.instance, keep_logs_in=LOGS, report=say) as bed:
        say(f"node-1 and node-2 share {bed.shared_folder}")
        order.is_awaited = True
        say(f"{LAST_WORDS}{bed.kubeconfig}")
        # Whoever listened has gone: what is said from now on is for who reads the logs.
        with (bed.folder / "log" / "testbed.log").open("a") as log:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log.fileno(), stream.fileno())
        serve(bed, order.is_given.is_set)


class EndOrder:
    """TERM ends a start at once, and a testbed that is up when it looks. Another one doesn't disturb the clearing."""

    def __init__(self) -> None:
        self.is_given = threading.Event()
        self.is_awaited = False

    def take(self, *_: object) -> None:
        is_first = not self.is_given.is_set()
        self.is_given.set()
        if is_first and not self.is_awaited:
            raise KeyboardInterrupt


def down(arguments: argparse.Namespace) -> None:
    """Take down the testbeds that run in the background, and clear what crashed ones left."""
    # Those in other processes' hands are part of a test.
    ours = [(slot, holder) for slot, holder in find_held() if holder.is_background]
    ended = [(slot, holder) for slot, holder in ours if arguments.instance in {None, slot.number}]
    for slot, holder in ended:
        ask_to_end(slot, holder)
    for slot, _ in ended:
        wait_released(slot)
        say(f"testbed {slot.number} is down")
    cleared = clear_all_crashed()
    for slot in cleared:
        say(f"cleared what was left of testbed {slot.number}")
    if not ended and not cleared:
        which = "no testbed" if arguments.instance is None else f"no testbed {arguments.instance}"
        say(f"{which} runs in the background, and nothing of a crashed one is left")


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
    getattr(bed, verb)(arguments.argument)


def say(line: str) -> None:
    print(line, flush=True)


INSTANCE_HELP = "its number, where several run in the background"
INSTANCE_COMMANDS = (up, run_server, down)
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
        if command in INSTANCE_COMMANDS:
            plain.add_argument("--instance", type=int, help=INSTANCE_HELP)
        plain.set_defaults(run=command)
    for name, metavar in VERBS.items():
        verb = commands.add_parser(name)
        verb.add_argument("argument", metavar=metavar, type=int if metavar == "COUNT" else str)
        verb.add_argument("--instance", type=int, help=INSTANCE_HELP)
        verb.set_defaults(run=control)
    arguments = parser.parse_args()
    try:
        require_root()
        arguments.run(arguments)
    except TestbedError as error:
        # The background process's words are repeated by `up`, which says who speaks.
        print(error if arguments.run is run_server else f"{parser.prog} {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
