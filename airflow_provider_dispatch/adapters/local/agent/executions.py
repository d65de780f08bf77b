# SPDX-License-Identifier: Apache-2.0
"""The executions of this agent: each with the job's lock, a shim, and a folder of its own.

Carries out what the machine orders and tells it, as its inputs, what happens to processes. An execution never begins
before the job's lock is won, which proves that nothing of an earlier one lives.
"""

from __future__ import annotations

import errno
import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_dispatch.adapters.local.agent.errands import Errands
from airflow_provider_dispatch.adapters.local.agent.locking import clear_execution, win_lock
from airflow_provider_dispatch.adapters.local.agent.orphans import Children
from airflow_provider_dispatch.adapters.local.agent.secret_files import UnusableSecretError, read_secrets
from airflow_provider_dispatch.adapters.local.agent.shim_link import ShimLink
from airflow_provider_dispatch.adapters.local.agent.traces import read_last_lines, read_result
from airflow_provider_dispatch.adapters.local.environment import build_rank_environment
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.lifecycle import messages
from airflow_provider_dispatch.adapters.local.lifecycle.messages import Input
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key
from airflow_provider_dispatch.adapters.local.processes import JobLock
from airflow_provider_dispatch.adapters.local.shim.wire import Message
from airflow_provider_dispatch.adapters.local.store.errors import is_passing
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_spec import JobSpec, RoleSpec
from airflow_provider_dispatch.core.quantity import MEMORY
from airflow_provider_dispatch.core.state import Cause

LOCK_PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 3.0
# After the grace period the shim kills everything and leaves in a moment, unless something keeps it from running.
LEAVING_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all executions of an agent share.

    :param base_env: what every rank sees.
    :param post: takes an input for the machine.
    :param children: of the agent's process.
    :param clock: seconds that never go back.
    """

    layout: StoreLayout
    selector: selectors.BaseSelector
    errands: Errands
    base_env: Mapping[str, str]
    post: Callable[[Input], None]
    children: Children = field(default_factory=Children)
    clock: Callable[[], float] = time.monotonic


class Executions:
    """All that may have processes."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._running: dict[Key, _Execution] = {}
        self._reclaimed: set[Identity] = set()
        self._look_at = 0.0

    def is_empty(self) -> bool:
        """Nothing runs or is waited for."""
        return not self._running and self._around.errands.pending == 0

    def seconds_until_look(self) -> float | None:
        """When :meth:`look_after` is due; None while nothing runs."""
        return max(0.0, self._look_at - self._around.clock()) if self._running else None

    def look_after(self) -> None:
        """See, now and then, that no rank keeps its shim from its work."""
        now = self._around.clock()
        if self._running and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            for execution in list(self._running.values()):
                execution.look_after(now)

    def start(self, key: Key, identity: Identity, spec: JobSpec) -> None:
        """Win the lock and start a shim."""
        execution = _Execution(key, identity, spec, self._around, lambda: self._running.pop(key))
        self._running[key] = execution
        execution.begin()

    def spawn(self, key: Key, role: str) -> None:
        """Start the ranks of a role."""
        if key in self._running:
            self._running[key].spawn(role)

    def end(self, key: Key, reason: str, grace: timedelta) -> None:
        """Ask all processes to end."""
        if key in self._running:
            self._running[key].end(reason, grace)

    def end_all(self, reason: str) -> None:
        """Ask everything to end, each after its own grace period."""
        for execution in list(self._running.values()):
            execution.end(reason, execution.spec.grace_period)

    def reclaim(self, key: Key, identity: Identity) -> None:
        """See an execution of a dead agent to its end; then it is told lost. Asked again, it changes nothing."""
        # A second one that waits might meet the lock in the hands of the next execution, and end that one's ranks.
        if identity in self._reclaimed:
            return
        self._reclaimed.add(identity)
        told = messages.ExecutionLost(key, identity, "the agent that ran it died, and its ranks with it")
        path = self._around.layout.job_lock(identity.job)
        self._around.errands.run(lambda: clear_execution(path, identity.attempt_id), lambda _: self._around.post(told))


class _Execution:
    """One execution of this agent.

    :param forget: called when there is nothing left of it.
    """

    def __init__(
        self, key: Key, identity: Identity, spec: JobSpec, around: Surroundings, forget: Callable[[], object]
    ) -> None:
        self.key, self.identity, self.spec = key, identity, spec
        self._around, self._forget = around, forget
        self._folder = around.layout.execution_folder(identity)
        self._cancelled = threading.Event()
        self._link: ShimLink | None = None
        self._roles: list[str] = []
        self._leave_by = math.inf
        self._is_gone = self._is_overdue = False
        self._refusal = ""
        self._port = 0

    def begin(self) -> None:
        job = self.identity.job
        path = self._around.layout.job_lock(job)
        try:
            self._around.layout.state_dir(job).mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = JobLock.take(path)
        except OSError as error:
            self._fail_to_begin(error)
            return
        if lock is not None:
            self._start(lock)
            return
        _log.info("%s waits for what is left of an earlier execution", self.identity.attempt_id)
        self._around.errands.run(
            lambda: win_lock(path, job, patience_seconds=LOCK_PATIENCE_SECONDS, cancelled=self._cancelled),
            self._take_lock,
        )

    def spawn(self, role: str) -> None:
        if self._link is None:
            self._roles.append(role)
            return
        found = self.spec.role(role)
        try:
            secrets = read_secrets(self._around.layout.secrets, found.secrets)
        except UnusableSecretError as error:
            self._around.post(messages.RankNotStarted(self.key, self.identity, role, 0, str(error)))
            return
        for rank in range(found.nodes):
            self._link.send(self._build_order(found, rank, secrets))

    def end(self, reason: str, grace: timedelta) -> None:
        if self._link is None:
            self._cancelled.set()
            return
        self._link.send({"op": "end", "grace_seconds": grace.total_seconds(), "reason": reason, "by": "agent"})
        self._expect_end(grace.total_seconds())

    def look_after(self, now: float) -> None:
        if self._link is None:
            return
        if now >= self._leave_by and not self._is_overdue:
            _log.warning("the supervisor of %s does not leave: it is killed", self.identity.attempt_id)
            self._is_overdue = True
            self._link.kill()
        self._link.look_after()

    def _expect_end(self, grace_seconds: float) -> None:
        self._leave_by = min(self._leave_by, self._around.clock() + grace_seconds + LEAVING_SECONDS)

    def _take_lock(self, lock: JobLock | None) -> None:
        if self._cancelled.is_set():
            if lock is not None:
                lock.close()
            self._finish(messages.ExecutionGone(self.key, self.identity))
        elif lock is None:
            self._fail(f"processes of an earlier execution were still there after {LOCK_PATIENCE_SECONDS:.0f} s")
        else:
            self._start(lock)

    def _start(self, lock: JobLock) -> None:
        try:
            with lock:
                (self._folder / "results").mkdir(mode=0o700, parents=True, exist_ok=True)
                self._port = _choose_port()
                self._link = ShimLink(
                    lock,
                    self._around.selector,
                    children=self._around.children,
                    folder=self._around.layout.folder,
                    take=self._take,
                    when_closed=self._close,
                )
        except OSError as error:
            self._fail_to_begin(error)
            return
        for role in self._roles:
            self.spawn(role)

    def _build_order(self, role: RoleSpec, rank: int, secrets: Mapping[str, str]) -> Message:
        state_dir = self._around.layout.state_dir(self.identity.job)
        known_here = {
            **secrets,
            "DISPATCH_STATE_DIR": str(state_dir),
            "DISPATCH_RESULT_PATH": str(self._folder / "results" / f"{role.name}-{rank}.json"),
        }
        readiness = role.readiness
        order: Message = {
            "op": "spawn",
            "role": role.name,
            "rank": rank,
            "argv": list(role.command),
            "env": build_rank_environment(
                self._around.base_env, self.spec, role, self.identity, rank=rank, port=self._port, known_here=known_here
            ),
            "cwd": self.spec.working_dir or str(state_dir),
            "log_dir": str(self._folder / "logs"),
            "memory_bytes": role.requests.get(MEMORY),
            "readiness": None,
        }
        if readiness is not None:
            order["readiness"] = (
                {"command": list(readiness.command)} if readiness.command else {"tcp_port": readiness.tcp_port}
            )
            order["readiness_period_seconds"] = readiness.period.total_seconds()
        return order

    def _take(self, message: Message) -> None:
        role, rank = str(message.get("role", "")), message.get("rank", -1)
        assert isinstance(rank, int)
        named = (self.key, self.identity, role, rank)
        match message:
            case {"event": "started", "pid": int(pid)}:
                self._around.post(messages.RankStarted(*named, pid))
            case {"event": "ready"}:
                self._around.post(messages.RankReady(*named))
            case {"event": "exited"}:
                self._around.post(self._build_exit(role, rank, message))
            case {"event": "spawn_failed", "errno": errno.ESHUTDOWN}:
                pass  # it was asked to end before this rank could begin
            case {"event": "spawn_failed"}:
                self._around.post(messages.RankNotStarted(*named, str(message.get("message"))))
            case {"event": "gone"}:
                self._is_gone = True
            case _:
                self._refuse(str(message.get("message", message)))

    def _build_exit(self, role: str, rank: int, message: Message) -> messages.RankExited:
        code, signal = message.get("exit_code"), message.get("signal")
        is_own = bool(message.get("before_signal"))
        result: object = None
        result_error, last_lines = "", tuple[str, ...]()
        if code == 0 and is_own and (role, rank) == (self.spec.leader.name, 0):
            result, result_error = read_result(self._folder / "results" / f"{role}-{rank}.json")
        elif code != 0 and is_own:
            last_lines = read_last_lines(self._folder / "logs", execution=self.identity.r, role=role, rank=rank)
        return messages.RankExited(
            self.key,
            self.identity,
            role,
            rank,
            exit_code=code if isinstance(code, int) else None,
            signal=signal if isinstance(signal, int) else None,
            out_of_memory=bool(message.get("out_of_memory")),
            was_signalled=not is_own,
            last_lines=last_lines,
            result=result,
            result_error=result_error,
        )

    def _refuse(self, problem: str) -> None:
        _log.error("the shim of %s refused an order: %s", self.identity.attempt_id, problem)
        self._refusal = problem
        if self._link is not None:
            self._link.send({"op": "kill"})
            self._expect_end(0)

    def _close(self) -> None:
        told = self._build_end()
        if self._is_gone:
            self._finish(told)
        else:
            self._around.errands.run(self._clear, lambda _: self._finish(told))

    def _build_end(self) -> Input:
        if self._refusal:
            return messages.ExecutionLost(self.key, self.identity, self._refusal, Cause.MISCONFIGURED)
        if self._is_gone or self._is_overdue:
            return messages.ExecutionGone(self.key, self.identity)
        return messages.ExecutionLost(self.key, self.identity, "the supervisor of its processes died")

    def _clear(self) -> None:
        """End what a dead shim has left: first all of it that can't hide from its new parent."""
        self._around.children.end_orphans()
        clear_execution(self._around.layout.job_lock(self.identity.job), self.identity.attempt_id)

    def _fail_to_begin(self, error: OSError) -> None:
        if is_passing(error):
            # That is no mistake in the job: a recovery policy submits it again, after a pause.
            told = messages.ExecutionLost(self.key, self.identity, f"this machine could not begin it now: {error}")
            _log.error("%s: %s", self.identity.attempt_id, told.detail)
            self._finish(told)
        else:
            self._fail(str(error))

    def _fail(self, detail: str) -> None:
        _log.error("%s could not be begun: %s", self.identity.attempt_id, detail)
        self._finish(messages.ExecutionLost(self.key, self.identity, detail, Cause.MISCONFIGURED))

    def _finish(self, told: Input) -> None:
        self._forget()
        self._around.post(told)


def _choose_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
