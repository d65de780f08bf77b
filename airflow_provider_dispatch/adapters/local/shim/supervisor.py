# SPDX-License-Identifier: Apache-2.0
"""The shim's loop: takes the agent's orders, watches the ranks, and leaves only when nothing of them is left.

One thread, woken by descriptors and by the next thing that is due; with nothing due it sleeps. The agent's death (end
of file) kills everything. Only after the last descendant has been reaped is ``gone`` said and the process ended, and
with it the last holder of the job's lock.

Run by ``__main__``. Never decides about the job: whether it has succeeded, what runs next, when to stop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import time

from airflow_provider_dispatch.adapters.local.shim.control import AgentLine
from airflow_provider_dispatch.adapters.local.shim.descent import (
    become_subreaper,
    derive_descendants,
    derive_owners,
    end_children,
    fetch_environment,
    fetch_table,
    kill_descendants,
    kill_entries,
    kill_newest,
    measure_memory,
)
from airflow_provider_dispatch.adapters.local.shim.rank import Rank
from airflow_provider_dispatch.adapters.local.shim.wire import (
    SpawnOrder,
    WireError,
    decode,
    format_time,
    number_of,
    text_of,
)

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.local.shim.descent import ProcessEntry
    from airflow_provider_dispatch.adapters.local.shim.wire import Message

MEMORY_PERIOD_SECONDS = 0.5
FIRST_KILL_AGAIN_SECONDS = 0.01
LONGEST_KILL_AGAIN_SECONDS = 0.25
SAYING_GOODBYE_SECONDS = 5.0
# What waits for the kernel can wait 24 days at most, and a grace period may be longer.
LONGEST_SLEEP_SECONDS = 86_400.0
_MOST_REAPED_AT_ONCE = 1000
_NEVER = float("inf")


class Supervisor:
    """The shim.

    :param control_fd: the socket to the agent.
    :param lock_fd: the job's lock file, locked.
    """

    def __init__(self, *, control_fd: int, lock_fd: int) -> None:
        self._lock_fd = lock_fd
        os.set_inheritable(lock_fd, False)  # noqa: FBT003 - the standard library's signature
        self._selector = selectors.DefaultSelector()
        self._agent = AgentLine(control_fd, self._selector, self._take_order)
        self._ranks: dict[tuple[str, int], Rank] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._has_children = False
        self._has_orphans = False
        self._announcement: Message | None = None
        self._kill_at = _NEVER
        self._is_killing = False
        self._pause = FIRST_KILL_AGAIN_SECONDS
        self._sweep_at = _NEVER
        self._measure_at = _NEVER

    def run(self) -> None:
        """Serve until the execution has been ended and nothing of it is left."""
        self._install_signals()
        become_subreaper()
        try:
            while not self._is_over():
                self._turn(self._derive_timeout(time.monotonic()))
        finally:
            # Done, unless the loop has failed: then too nothing may outlive it.
            end_children()
        self._close_ranks()
        self._say("gone")
        deadline = time.monotonic() + SAYING_GOODBYE_SECONDS
        while self._agent.has_unsent() and time.monotonic() < deadline:
            self._turn(deadline - time.monotonic())

    def _turn(self, timeout_seconds: float | None) -> None:
        for key, _events in self._selector.select(timeout_seconds):
            # An earlier callback of this turn may have closed what this one is about.
            if self._selector.get_map().get(key.fd) == key:
                key.data(time.monotonic())
        self._reap()
        self._advance(time.monotonic())

    # What the agent orders

    def _take_order(self, line: bytes) -> None:
        try:
            self._obey(decode(line))
        except WireError as error:
            self._say("refused", message=str(error))

    def _obey(self, message: Message) -> None:
        match message.get("op"):
            case "spawn":
                self._spawn(SpawnOrder(message))
            case "end":
                self._end(number_of(message, "grace_seconds"), text_of(message, "reason"), text_of(message, "by"))
            case "kill":
                self._end(0, "kill", "agent")
            case unknown:
                raise WireError(f"op {unknown!r} is unknown")

    def _spawn(self, order: SpawnOrder) -> None:
        now = time.monotonic()
        who: Message = {"role": order.role, "rank": order.rank}
        try:
            rank = self._start_rank(order, now)
        except OSError as error:
            self._say("spawn_failed", **who, errno=error.errno, message=error.strerror)
            return
        self._ranks[rank.identity] = rank
        self._leaders[rank.pid] = rank.identity
        self._has_children = True
        if order.memory_bytes is not None:
            self._measure_at = min(self._measure_at, now)
        self._say("started", **who, pid=rank.pid)
        if rank.check is None:
            self._say("ready", **who)

    def _start_rank(self, order: SpawnOrder, now: float) -> Rank:
        if self._announcement is not None or self._agent.is_dead:
            raise OSError(errno.ESHUTDOWN, "this execution is ending")
        if (order.role, order.rank) in self._ranks:
            raise OSError(errno.EEXIST, f"rank {order.rank} of role {order.role!r} has been started before")
        return Rank(order, lock_fd=self._lock_fd, selector=self._selector, now=now)

    def _end(self, grace_seconds: float, reason: str, by: str) -> None:
        """Signal all ranks, once; a later call can only bring the KILL forward."""
        self._reap()  # what has ended up to now has ended by itself
        kill_at = time.monotonic() + grace_seconds
        if kill_at >= self._kill_at:
            return
        self._kill_at = kill_at
        deadline = format_time(time.time_ns() + int(grace_seconds * 1e9))
        is_first = self._announcement is None
        self._announcement = (self._announcement or {"reason": reason, "by": by}) | {"deadline": deadline}
        for rank in self._ranks.values():
            rank.announce_end(self._announcement)
            rank.close_check()
        if is_first:
            for rank in self._ranks.values():
                rank.terminate()

    # What happens to the ranks

    def _reap(self) -> None:
        for _ in range(_MOST_REAPED_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            self._note_exit(pid, status)

    def _note_exit(self, pid: int, status: int) -> None:
        now = time.monotonic()
        rank = self._ranks.get(self._leaders.get(pid, ("", -1)))
        if rank is not None and rank.is_running:
            told = rank.note_exit(status)
            self._sweep_at, self._pause = now, FIRST_KILL_AGAIN_SECONDS
            who: Message = {"role": rank.order.role, "rank": rank.order.rank}
            self._say("exited", **who, **told, before_signal=self._announcement is None)
            return
        for rank in self._ranks.values():
            if rank.check is not None and rank.check.pid == pid:
                rank.check.note_exit(status, now)
        if not all(rank.is_running for rank in self._ranks.values()):
            # An orphan: of an ended rank, it may have left a child that the last look was too early for.
            self._has_orphans = True
            self._sweep_at = min(self._sweep_at, now + FIRST_KILL_AGAIN_SECONDS)

    def _advance(self, now: float) -> None:
        self._advance_checks(now)
        if now >= self._measure_at:
            self._measure(now)
        if self._is_killing or self._is_last_moment(now):
            self._kill_everything(now)
        elif now >= self._sweep_at:
            self._sweep(now)

    def _advance_checks(self, now: float) -> None:
        for rank in self._ranks.values():
            if rank.check is not None and not rank.check.is_ready and now >= rank.check.due:
                rank.check.advance(now)
                self._has_children = True
            if rank.check is not None and rank.check.is_ready:
                rank.close_check()
                self._say("ready", role=rank.order.role, rank=rank.order.rank)

    def _measure(self, now: float) -> None:
        limited = [r for r in self._ranks.values() if r.is_running and r.order.memory_bytes is not None]
        self._measure_at = now + MEMORY_PERIOD_SECONDS if limited else _NEVER
        with contextlib.suppress(OSError):  # nothing to look with now; the next look is soon
            owners = self._derive_owners(self._fetch_descendants()) if limited else {}
            for rank in limited:
                limit = rank.order.memory_bytes or 0
                if measure_memory((pid for pid, owner in owners.items() if owner == rank.identity), limit) > limit:
                    rank.kill_for_memory()

    def _sweep(self, now: float) -> None:
        """KILL what ended ranks left behind, as the end of a container's first process does."""
        try:
            is_done = not self._kill_remains()
        except OSError:  # nothing to look with now, which says nothing about who is there
            is_done = False
        self._sweep_at = _NEVER if is_done else now + self._take_pause()

    def _kill_remains(self) -> bool:
        """Whether anything was there."""
        ended = {rank.identity for rank in self._ranks.values() if not rank.is_running}
        descendants = self._fetch_descendants()
        owners = self._derive_owners(descendants)
        remains = [entry for entry in descendants if entry.is_alive and owners.get(entry.pid) in ended]
        kill_entries(remains)
        if self._has_orphans:
            kill_newest(self._is_remains)
            self._has_orphans = False
        return bool(remains)

    def _is_remains(self, pid: int) -> bool:
        shown = fetch_environment(pid).items()
        return any(rank.marks.items() <= shown for rank in self._ranks.values() if not rank.is_running)

    # How it ends

    def _is_last_moment(self, now: float) -> bool:
        if self._agent.is_dead or now >= self._kill_at:
            return True
        return self._announcement is not None and not any(rank.is_running for rank in self._ranks.values())

    def _kill_everything(self, now: float) -> None:
        self._is_killing, self._sweep_at = True, _NEVER  # what a sweep is for is done here
        if self._has_children:
            kill_descendants(os.getpid(), groups=self._leaders)
            self._kill_at = now + self._take_pause()

    def _is_over(self) -> bool:
        # No child means no descendant: whoever loses its parent becomes a child of this process.
        return self._is_killing and not self._has_children

    def _close_ranks(self) -> None:
        for rank in self._ranks.values():
            rank.close_check()
            rank.capture.close()

    # What the loop needs

    def _fetch_descendants(self) -> list[ProcessEntry]:
        return derive_descendants(fetch_table(), [os.getpid()])

    def _derive_owners(self, descendants: list[ProcessEntry]) -> dict[int, tuple[str, int]]:
        return derive_owners(descendants, self._leaders, self._ranks)

    def _take_pause(self) -> float:
        pause = self._pause
        self._pause = min(2 * pause, LONGEST_KILL_AGAIN_SECONDS)
        return pause

    def _derive_timeout(self, now: float) -> float | None:
        due = [rank.check.due for rank in self._ranks.values() if rank.check is not None]
        soonest = min(self._kill_at, self._measure_at, self._sweep_at, *due)
        return None if soonest == _NEVER else min(max(0.0, soonest - now), LONGEST_SLEEP_SECONDS)

    def _say(self, event: str, **facts: object) -> None:
        self._agent.send({"event": event, **facts, "at": format_time(time.time_ns())})

    def _install_signals(self) -> None:
        """Deaf to what a terminal or a service manager sends; a child's end wakes the loop."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        read_fd, write_fd = os.pipe()
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(read_fd, selectors.EVENT_READ, lambda _now: os.read(read_fd, 4096))
