# SPDX-License-Identifier: Apache-2.0
"""What instances on one machine must not share (bridge, pod addresses, ports, cgroups), numbered.

Each instance holds one slot, by a lock that the kernel lifts when its harness ends, however. The lock's file names the
instance's folder; a file with a folder and without a holder is a crashed instance. Clears nothing itself.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster.testbed.build import run_to_end
from tests.cluster.testbed.errors import TestbedError

SLOTS = 64
SLOTS_FOLDER = Path("/run/dispatch-testbed")
"""Bridges and cgroups belong to the machine, not to a user's cache: so does the list of their holders."""
ADDRESSES_PER_SLOT = 1024
FIRST_PORT = 20_000
"""Well below the ports that the kernel gives to clients: a component that is away for a while finds its own again."""
PORTS_PER_SLOT = 100


@dataclass(frozen=True, slots=True)
class Slot:
    number: int

    @property
    def bridge(self) -> str:
        return f"dispatch-tb{self.number}"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        """Of the pods; its first address is the host's."""
        first = ipaddress.IPv4Address("10.244.0.0") + self.number * ADDRESSES_PER_SLOT
        return ipaddress.IPv4Network(f"{first}/22")

    @property
    def gateway(self) -> str:
        """The host as the pods see it; nodes and API server have this address."""
        return str(self.subnet[1])

    def cgroup(self, node: str) -> str:
        """A kubelet ends what it finds in its own tree and doesn't know: none may see another's."""
        return f"dispatch-tb{self.number}-{node}"

    def find_ports(self, names: Iterable[str]) -> Mapping[str, int]:
        """A port for each name; those that somebody else listens on are passed over."""
        first = FIRST_PORT + self.number * PORTS_PER_SLOT
        free = (port for port in range(first, first + PORTS_PER_SLOT) if is_free(port))
        try:
            return {name: next(free) for name in names}
        except StopIteration as error:
            raise TestbedError(f"not enough free ports from {first} to {first + PORTS_PER_SLOT}") from error


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a slot, or held it, as its file says.

    :param is_background: started for people, to run until it is taken down.
    """

    folder: Path
    pid: int
    is_background: bool

    def is_alive(self, slot: Slot, *, files: Path = SLOTS_FOLDER) -> bool:
        """Whether that process runs: the holder has the slot's file open, and who got its number later hasn't."""
        try:
            opened = [link.readlink() for link in Path(f"/proc/{self.pid}/fd").iterdir()]
        except OSError:
            return False
        return find_file(slot.number, files) in opened


class SlotLock:
    """A held slot."""

    def __init__(self, slot: Slot, file: IO[str]) -> None:
        self.slot = slot
        self._file = file

    def read_holder(self) -> Holder | None:
        """None: no instance is here, nor left over."""
        self._file.seek(0)
        return parse_holder(self._file.read(), find_file(self.slot.number))

    def write_holder(self, holder: Holder) -> None:
        facts = {"folder": str(holder.folder), "pid": holder.pid, "is_background": holder.is_background}
        self.clear()
        self._file.write(json.dumps(facts))
        self._file.flush()

    def clear(self) -> None:
        """Say that nothing is left of the instance."""
        self._file.seek(0)
        self._file.truncate()

    def close(self) -> None:
        self._file.close()


def parse_holder(text: str, file: Path) -> Holder | None:
    """:param file: where the text stands, for who has to look at it."""
    if not text:
        return None
    try:
        facts = json.loads(text)
        return Holder(Path(facts["folder"]), facts["pid"], facts["is_background"])
    except (ValueError, LookupError, TypeError) as error:
        raise TestbedError(f"{file} should name a testbed and reads {text!r}: delete it") from error


def find_file(number: int, files: Path = SLOTS_FOLDER) -> Path:
    return files / f"{number}.json"


def lock_slot(number: int, *, files: Path = SLOTS_FOLDER) -> SlotLock | None:
    """None when somebody holds it."""
    files.mkdir(exist_ok=True)
    file = os.fdopen(os.open(find_file(number, files), os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return SlotLock(Slot(number), file)


def list_used(*, files: Path = SLOTS_FOLDER) -> list[int]:
    """The numbers of all slots that have been held since the machine started."""
    return sorted(int(path.stem) for path in files.glob("*.json") if path.stem.isdecimal())


def find_held(*, files: Path = SLOTS_FOLDER) -> Iterator[tuple[Slot, Holder]]:
    """The instances whose harness runs. Takes no lock, which others would take for the instance's."""
    for slot in map(Slot, list_used(files=files)):
        file = find_file(slot.number, files)
        holder = parse_holder(file.read_text(), file)
        if holder is not None and holder.is_alive(slot, files=files):
            yield slot, holder


def ask_to_end(slot: Slot, holder: Holder, *, files: Path = SLOTS_FOLDER) -> None:
    """TERM to the holder, and to nobody who has got its number since."""
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        if holder.is_alive(slot, files=files):  # looked at after the number was pinned down
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGTERM)
    finally:
        os.close(process)


def has_foreign_addresses(slot: Slot) -> bool:
    """Some other interface of this machine already has an address among those of the slot."""
    for interface in json.loads(run_to_end(["ip", "-j", "-4", "address", "show"])):
        for address in interface["addr_info"]:
            network = ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network
            is_default = network.prefixlen == 0
            if interface["ifname"] != slot.bridge and not is_default and network.overlaps(slot.subnet):
                return True
    return False


def is_free(port: int, address: str = "0.0.0.0") -> bool:
    with socket.socket() as listener:
        # As the components do: a port whose last connections linger is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            return False
    return True
