# SPDX-License-Identifier: Apache-2.0
"""Which processes descend from the shim, which rank each belongs to, and how to end them. Reads ``/proc``.

The shim is a subreaper: what loses its parent becomes the shim's child, so a process can leave its session, its
process group and its parent, and is still found beneath the shim. Elsewhere than on Linux there is no ``/proc``: the
tables are empty and only process groups can be signalled.

What can't be looked at for want of a descriptor or of memory is an ``OSError``, never "no process": whoever looks for
a proof must not get one from a look that failed.

Used by the shim, and by the agent to sweep what a killed shim left.
"""
# ruff: noqa: PTH208 - pathlib would be the dearest import of the shim

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Identity = tuple[str, int]

_PR_SET_CHILD_SUBREAPER = 36
_NEWEST_LOOKS = 200
_PAUSE_SECONDS = 0.01
GONE_OR_SECRET = (FileNotFoundError, ProcessLookupError, PermissionError)


class ProcessEntry:
    """One process at the moment it was looked at.

    :param session: process id of the session's leader.
    :param is_alive: False for a zombie of which no thread is left.
    :param start_time: in clock ticks since boot; with the process id, it names a process for ever.
    """

    __slots__ = ("group", "is_alive", "parent", "pid", "session", "start_time")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The command's name, in brackets, may itself hold brackets and spaces.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.is_alive = fields[0] not in b"ZX" or int(fields[17]) > 1
        self.start_time = int(fields[19])


def become_subreaper() -> None:
    """Make every orphan beneath this process its child."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - elsewhere it would be loaded for nothing

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this process could not be made a subreaper")


def read_file(path: str) -> bytes:
    """All of a small file; empty if it is gone, secret, or belongs to a process that is gone.

    :raises OSError: it can't be read for another reason, which says nothing about the process.
    """
    chunks = []
    with contextlib.suppress(*GONE_OR_SECRET):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while chunk := os.read(fd, 65536):
                chunks.append(chunk)
        except GONE_OR_SECRET:
            chunks.clear()
        finally:
            os.close(fd)
    return b"".join(chunks)


def fetch_entry(pid: int) -> ProcessEntry | None:
    """The process *pid*; None if there is none."""
    stat = read_file(f"/proc/{pid}/stat")
    return ProcessEntry(pid, stat) if stat else None


def fetch_table() -> dict[int, ProcessEntry]:
    """All processes of this machine, in the order of their numbers.

    :raises OSError: not all could be looked at.
    """
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:  # not Linux
        return {}
    entries = (fetch_entry(int(name)) for name in names if name.isdigit())
    return {entry.pid: entry for entry in entries if entry is not None}


def derive_descendants(table: Mapping[int, ProcessEntry], roots: Iterable[int]) -> list[ProcessEntry]:
    """Everything beneath *roots*, parents first, the roots left out."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry)
    found: list[ProcessEntry] = []
    waiting, seen = list(roots), set(roots)
    while waiting:
        for entry in children.get(waiting.pop(), ()):
            if entry.pid not in seen:
                seen.add(entry.pid)
                found.append(entry)
                waiting.append(entry.pid)
    return found


def fetch_environment(pid: int) -> dict[bytes, bytes]:
    """The environment *pid* was started with; empty if it can't be read."""
    raw = read_file(f"/proc/{pid}/environ")
    if not raw:
        # The main thread may have ended before the others; each of them still shows it.
        raw = next(filter(None, map(read_file, _list_environments(pid))), b"")
    return dict(item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)


def _list_environments(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}/environ" for thread in os.listdir(f"/proc/{pid}/task")]
    except GONE_OR_SECRET:
        return []


def derive_owners(
    descendants: Iterable[ProcessEntry], leaders: Mapping[int, Identity], known: Iterable[Identity]
) -> dict[int, Identity]:
    """Which rank each descendant belongs to: by its session, else by its environment, else by its parent.

    :param descendants: parents first.
    :param leaders: main process of a rank → rank.
    :param known: the ranks an environment may name.
    """
    identities = set(known)
    owners: dict[int, Identity] = {}
    for entry in descendants:
        owner = leaders.get(entry.session) or _read_identity(entry.pid)
        if owner not in identities:
            owner = owners.get(entry.parent)
        if owner is not None:
            owners[entry.pid] = owner
    return owners


def _read_identity(pid: int) -> Identity | None:
    environment = fetch_environment(pid)
    role, rank = environment.get(b"DISPATCH_ROLE"), environment.get(b"DISPATCH_RANK", b"")
    return (role.decode("utf-8", "surrogateescape"), int(rank)) if role and rank.isdigit() else None


def measure_memory(pids: Iterable[int], limit: int) -> int:
    """Bytes of memory that *pids* take; pages that several share count once in total (exact only above *limit*)."""
    numbers = list(pids)
    page = os.sysconf("SC_PAGE_SIZE")
    resident = {pid: int(fields[1]) * page for pid in numbers if (fields := read_file(f"/proc/{pid}/statm").split())}
    if sum(resident.values()) <= limit:
        return sum(resident.values())
    # Dearer to read: the kernel walks all pages.
    return sum(_read_proportional(pid, fallback) for pid, fallback in resident.items())


def _read_proportional(pid: int, fallback: int) -> int:
    for line in read_file(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return fallback


def send_signal(pid: int, number: int) -> None:
    """Signal one process, if it is there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group_signal(group: int, number: int) -> None:
    """Signal a process group, if it is there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_entries(entries: Iterable[ProcessEntry]) -> None:
    """KILL *entries* and the process groups they are in, once. What forks meanwhile needs another call.

    A group at a time, because the kernel lets no fork of a member slip through. A group lies within one session, and a
    session that isn't ours was made by one of the descendants, so all of it descends from the same rank.
    """
    own_session = os.getsid(0)
    found = list(entries)
    for group in {entry.group for entry in found if entry.session != own_session}:
        send_group_signal(group, signal.SIGKILL)
    for entry in found:
        if entry.session == own_session:
            send_signal(entry.pid, signal.SIGKILL)


def kill_descendants(root: int, *, groups: Iterable[int] = ()) -> None:
    """KILL everything beneath *root*, once. No proof of anything.

    :param groups: what to kill instead where descendants can't be found.
    """
    try:
        table = fetch_table()
    except OSError:  # for want of a descriptor or of memory: the first that die may give some back
        table = {}
    kill_entries(derive_descendants(table, [root]))
    for group in groups if not table else ():
        send_group_signal(group, signal.SIGKILL)


def end_children() -> None:
    """KILL everything beneath this process until nothing is left; waits as long as that takes."""
    while True:
        kill_descendants(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_SECONDS)


def kill_newest(is_target: Callable[[int], bool]) -> None:
    """KILL the machine's newest process, a number of times, where *is_target* says so of its number.

    For a process that forks and ends without pause: it is gone before a look at all processes comes to it, but its
    number is always the last that the kernel has given away.
    """
    for _ in range(_NEWEST_LOOKS):
        fields = read_file("/proc/loadavg").split()
        if not fields:
            return
        pid = int(fields[-1])
        if pid != os.getpid() and is_target(pid):
            send_signal(pid, signal.SIGKILL)
