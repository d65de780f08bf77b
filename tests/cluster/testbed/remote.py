# SPDX-License-Identifier: Apache-2.0
"""A testbed that another process runs: the socket in the instance's folder, its server's side and its caller's.

The background process of ``testbed up`` serves; the command line and tests that are pointed at a running instance
call. One request at a time, a line of JSON each way. Only who may read root's files can call.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.testbed import pins
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.build import Builder
from tests.cluster.testbed.controller_image import load_controller_image
from tests.cluster.testbed.errors import TestbedError

SOCKET_NAME = "control.sock"
VERBS = frozenset({"pause", "resume", "lose", "start_component", "stop_component", "configure_kueue", "add_fake_nodes"})
ANSWER_TIMEOUT_SECONDS = 900.0
"""Adding the first fake node builds their program."""


class AttachedBed(Bed):
    """:param folder: of an instance that was started in the background."""

    def pause(self, node: str) -> None:
        self._ask("pause", node)

    def resume(self, node: str) -> None:
        self._ask("resume", node)

    def lose(self, node: str) -> None:
        self._ask("lose", node)

    def start_component(self, name: str) -> None:
        self._ask("start_component", name)

    def stop_component(self, name: str) -> None:
        self._ask("stop_component", name)

    def configure_kueue(self, wishes: Mapping[str, Any]) -> None:
        self._ask("configure_kueue", dict(wishes))

    def load_controller_image(self) -> str:
        return load_controller_image(self.folder, Builder(pins.find_cache()))

    def add_fake_nodes(self, count: int) -> None:
        self._ask("add_fake_nodes", count)

    def _ask(self, verb: str, argument: object) -> None:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(ANSWER_TIMEOUT_SECONDS)
            try:
                channel.connect(str(self.folder / SOCKET_NAME))
                channel.sendall(json.dumps([verb, argument]).encode() + b"\n")
                answer = channel.makefile("rb").readline()
            except OSError as error:
                raise TestbedError(f"no testbed answers in {self.folder}: {error}") from error
        complaint = json.loads(answer or b'"it has ended"')
        if complaint is not None:
            raise TestbedError(f"the testbed in {self.folder} could not {verb} {argument}: {complaint}")


def is_served(folder: Path) -> bool:
    return (folder / SOCKET_NAME).exists()


def serve(bed: Bed, is_over: Callable[[], bool]) -> None:
    """Answer until *is_over*, which is asked every half second."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bed.folder / SOCKET_NAME))
        listener.listen()
        listener.settimeout(0.5)
        while not is_over():
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                continue
            with channel:
                channel.settimeout(5)
                _answer(bed, channel)


def _answer(bed: Bed, channel: socket.socket) -> None:
    complaint = None
    try:
        verb, argument = json.loads(channel.makefile("rb").readline())
        _find_verb(bed, verb)(argument)
    except (
        RuntimeError,
        OSError,
        LookupError,
        ValueError,
    ) as error:  # ours, the guard's and the API's are RuntimeErrors
        complaint = f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the caller didn't wait
        channel.sendall(json.dumps(complaint).encode() + b"\n")


def _find_verb(bed: Bed, verb: str) -> Callable[[object], None]:
    if verb not in VERBS:
        raise LookupError(f"there is no verb {verb}")
    found: Callable[[object], None] = getattr(bed, verb)
    return found
