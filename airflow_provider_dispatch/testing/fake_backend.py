# SPDX-License-Identifier: Apache-2.0
"""A whole backend in memory, with a clock that only tests move.

It runs the very machine of the local adapter over processes that exist on paper, so what it decides is what the
product decides. Tests of the provider and users' tests of their DAGs make one and give it to
:class:`.fake_adapter.FakeAdapter`. Not for production: nothing is durable, nothing is real.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.local.lifecycle import messages
from airflow_provider_dispatch.adapters.local.lifecycle.machine import Machine
from airflow_provider_dispatch.adapters.local.lifecycle.queueing import NodeConfig
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key, Status, Submission
from airflow_provider_dispatch.adapters.local.scheduling.model import RANKS, Node, Queue
from airflow_provider_dispatch.adapters.local.scheduling.queue_file import DEFAULT_PRIORITIES
from airflow_provider_dispatch.core.holds import release_hold
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_spec import RoleSpec
from airflow_provider_dispatch.core.output import Cursor, OutputLine, clean_text
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobEvent
from airflow_provider_dispatch.exceptions import ProtocolError
from airflow_provider_dispatch.testing.fake_processes import KILL, FakeExecution, FakeProgram, FakeRank, parse_program

START = datetime(2030, 1, 1, tzinfo=UTC)
ROOMY = {"cpu": 64_000, "memory": 256 * 2**30, RANKS: 256}


class FakeBackend:
    """The world that fakes look at.

    :ivar secrets: references to those that there are; None means that every one is there.
    :param capacity: of the one node; cpu in millicores, memory in bytes.
    :param queues: None means that any name is fine and without limit.
    :param default_program: what commands do that the fake doesn't know.
    """

    def __init__(
        self,
        *,
        capacity: dict[str, int] | None = None,
        queues: Iterable[Queue] | None = None,
        default_program: FakeProgram | None = None,
        starvation_after: float = 60.0,
    ) -> None:
        self.now = START
        self.lock = threading.RLock()
        self.place = "fake"
        self.priorities = dict(DEFAULT_PRIORITIES)
        self.secrets: set[str] | None = None
        self.submissions: dict[Key, Submission] = {}
        self.statuses: dict[Key, Status] = {}
        self.ledger: dict[JobID, int] = {}
        self.deployments: dict[JobID, str] = {}
        self.stop_reasons: dict[JobID, str] = {}
        self.history: dict[JobID, list[JobEvent]] = {}
        self.output: dict[tuple[Key, int, str, int], list[OutputLine]] = {}
        self.executions: dict[Key, FakeExecution] = {}
        self.overlaps: list[str] = []
        self.epochs: dict[JobID, list[int]] = {}
        self.config = NodeConfig(
            Node("fake", {**ROOMY, **(capacity or {})}),
            tuple(queues or ()),
            has_open_queues=queues is None,
            starvation_after=starvation_after,
        )
        self._default = default_program or FakeProgram()
        self._generation = 1
        self._machine = Machine(self.config, generation=1)
        self._inbox: deque[messages.Input] = deque()
        self._listeners: list[Callable[[JobID], None]] = []
        self.is_hasty = False
        self._graveyard: list[FakeExecution] = []
        self._is_draining = False
        self._sequence = 0
        self._next_pid = 100

    # -- what adapters call ------------------------------------------------------------------------------------------

    def change_intent(self, submission: Submission) -> None:
        """Make what callers want durable and let the machine act on it."""
        with self.lock:
            self.submissions[submission.key] = submission
            self.feed(messages.IntentChanged(submission))

    def feed(self, message: messages.Input) -> None:
        """Give the machine an input and carry out everything that follows at this moment."""
        with self.lock:
            self._inbox.append(message)
            if self._is_draining:
                return
            self._is_draining = True
            try:
                while self._inbox:
                    self._take(self._machine.apply(self._inbox.popleft(), self.now))
            finally:
                self._is_draining = False

    def listen(self, listener: Callable[[JobID], None]) -> Callable[[], None]:
        """Call *listener* with the job of each change, from whichever thread made it; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def positions(self) -> dict[Key, int]:
        """Where waiting jobs stand in their queues."""
        return self._machine.positions(self.now)

    # -- what tests call ---------------------------------------------------------------------------------------------

    def advance(self, duration: timedelta) -> None:
        """Move the clock, stopping at everything that is due on the way."""
        with self.lock:
            until = self.now + duration
            while (due := self._next_due()) is not None and due <= until:
                self.now = max(due, self.now)
                self._run_due()
            self.now = until

    def exit_rank(
        self,
        key: Key,
        role: str = "node",
        rank: int = 0,
        *,
        code: int | None = None,
        signal: int | None = None,
        out_of_memory: bool = False,
        result: object = None,
    ) -> None:
        """Let a rank end of its own accord.

        :param result: what it leaves for its caller; a :class:`ProtocolError` stands for one that can't be carried.
        """
        with self.lock:
            found = self.rank(key, role, rank)
            found.out_of_memory = out_of_memory
            found.end_in(self.now, code, signal)
            self._end_rank(self.executions[key], found, result)

    def finish(self, key: Key, *, result: object = None) -> None:
        """Let every rank end well."""
        for rank in list(self.executions[key].ranks):
            if rank.is_alive:
                self.exit_rank(key, rank.role, rank.rank, code=0, result=result)

    def make_ready(self, key: Key, role: str, rank: int = 0) -> None:
        """Let a rank's readiness check pass."""
        with self.lock:
            execution = self.executions[key]
            self.rank(key, role, rank).is_ready = True
            self.feed(messages.RankReady(key, execution.identity, role, rank))

    def kill_agent(self) -> None:
        """The agent dies and its ranks with it; the next one takes over and finds them lost."""
        with self.lock:
            lost = list(self.executions.values())
            self.executions.clear()
            self._generation += 1
            self._machine = Machine(self.config, generation=self._generation)
            self._machine.load((self.submissions[key], self.statuses[key]) for key in self.submissions)
            for execution in lost:
                self.feed(messages.ExecutionLost(execution.key, execution.identity, "the agent died"))

    def print_line(self, key: Key, text: str, *, role: str = "node", rank: int = 0, stream: str = "stdout") -> None:
        """Let a rank print a line."""
        with self.lock:
            execution = self.executions[key].identity
            lines = self.output.setdefault((key, execution.r, role, rank), [])
            number = len(lines)
            cursor = Cursor(execution.r, role, rank, sequence=number + 1)
            line = OutputLine(self.now, role, rank, execution.r, number, stream, clean_text(text), cursor=cursor)
            lines.append(line)
            self._tell(key[0])

    def rank(self, key: Key, role: str, rank: int) -> FakeRank:
        """A process of the present execution.

        :raises KeyError: there is none.
        """
        for found in self.executions[key].ranks:
            if (found.role, found.rank) == (role, rank):
                return found
        raise KeyError((role, rank))

    def set_owner(self, key: Key, owner: Owner) -> None:
        """Change who owns a submission."""
        with self.lock:
            old = self.submissions[key]
            self.change_intent(replace(old, request=replace(old.request, owner=owner)))

    # -- carrying out ------------------------------------------------------------------------------------------------

    def _take(self, outcome: messages.Outcome) -> None:
        self.statuses.update(outcome.statuses)
        for note in outcome.notes:
            self._sequence += 1
            event = JobEvent(self._sequence, self.now, note.key[1], note.kind, note.message, note.epoch)
            self.history.setdefault(note.key[0], []).append(event)
        for effect in outcome.effects:
            self._carry_out(effect)
        for job in {key[0] for key in outcome.statuses} | {effect.key[0] for effect in outcome.effects}:
            self._tell(job)

    def _carry_out(self, effect: messages.Effect) -> None:
        match effect:
            case messages.StartExecution(key, identity):
                self._start(key, FakeExecution(key, identity))
            case messages.SpawnRole(key, identity, role):
                self._spawn(self.executions[key], role)
            case messages.EndExecution(key, identity, _, grace):
                self._end(key, grace)
            case messages.LiftHold(key, hold):
                held = self.submissions[key]
                lifted = replace(held, holds=release_hold(held.holds, hold))
                self.submissions[key] = lifted
                self.feed(messages.IntentChanged(lifted))
            case messages.RemoveSubmission(key):
                self.stop_reasons[key[0]] = stop.reason if (stop := self.submissions[key].stop) else ""
                del self.submissions[key], self.statuses[key]

    def _start(self, key: Key, execution: FakeExecution) -> None:
        for other in (*self.executions.values(), *self._graveyard):
            if other.key[0] == key[0] and other.has_survivors(self.now):
                self.overlaps.append(f"{execution.identity.attempt_id} beside {other.identity.attempt_id}")
        self.executions[key] = execution
        self.epochs.setdefault(key[0], []).append(execution.identity.epoch)

    def _spawn(self, execution: FakeExecution, role_name: str) -> None:
        role = self.submissions[execution.key].request.spec.role(role_name)
        program = parse_program(role.command, self._default)
        problem = f"{role.command[0]}: no such command" if program.is_missing else self._find_missing_secret(role)
        for number in range(role.nodes):
            if problem:
                self.feed(messages.RankNotStarted(execution.key, execution.identity, role_name, number, problem))
                continue
            self._next_pid += 1
            ends_at = self.now + program.runs if program.runs < timedelta(days=10_000) else None
            rank = FakeRank(role_name, number, program, self._next_pid, ends_at, has_check=role.readiness is not None)
            execution.ranks.append(rank)
            named = (execution.key, execution.identity, role_name, number)
            self.feed(messages.RankStarted(*named, rank.pid))
            if not rank.has_check:
                rank.is_ready = True
                self.feed(messages.RankReady(*named))

    def _find_missing_secret(self, role: RoleSpec) -> str:
        known = role.secrets.values() if self.secrets is None else self.secrets
        return next((f"there is no secret {each}" for each in role.secrets.values() if each not in known), "")

    def _end(self, key: Key, grace: timedelta) -> None:
        execution = self.executions[key]
        execution.is_asked_to_end = True
        for rank in execution.ranks:
            if rank.is_alive:
                rank.signal_at(self.now, grace)
        self._report_gone(execution)

    def _run_due(self) -> None:
        for execution in list(self.executions.values()):
            for rank in list(execution.ranks):
                if rank.is_alive and rank.ends_at is not None and rank.ends_at <= self.now:
                    self._end_rank(execution, rank)
        timer = self._machine.next_timer()
        if timer is not None and timer <= self.now:
            self.feed(messages.Tick())

    def _end_rank(self, execution: FakeExecution, rank: FakeRank, result: object = None) -> None:
        rank.is_alive = False
        code, signal = rank.own_end or (rank.program.exit_code, None)
        if rank.is_signalled and rank.own_end is None:
            code, signal = (None, KILL) if rank.is_killed else (0, None)
        lines = self.output.get((execution.key, execution.identity.r, rank.role, rank.rank), [])
        exited = messages.RankExited(
            execution.key,
            execution.identity,
            rank.role,
            rank.rank,
            exit_code=code,
            signal=signal,
            out_of_memory=rank.out_of_memory,
            was_signalled=rank.is_signalled,
            last_lines=tuple(line.text for line in lines[-10:]) if code != 0 else (),
            result=None if isinstance(result, ProtocolError) else result,
            result_error=str(result) if isinstance(result, ProtocolError) else "",
        )
        self.feed(exited)
        self._report_gone(execution)

    def _report_gone(self, execution: FakeExecution) -> None:
        is_known = self.executions.get(execution.key) is execution
        if self.is_hasty and execution.is_alive:
            # Only for the proof that an overlap would be seen: the dead are believed before they are.
            self._graveyard.append(execution)
        elif execution.is_alive:
            return
        if execution.is_asked_to_end and is_known:
            del self.executions[execution.key]
            self.feed(messages.ExecutionGone(execution.key, execution.identity))

    def _next_due(self) -> datetime | None:
        ends = [execution.next_end() for execution in self.executions.values()]
        return min((time for time in (*ends, self._machine.next_timer()) if time is not None), default=None)

    def _tell(self, job: JobID) -> None:
        for listener in list(self._listeners):
            listener(job)
