# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: intents and processes in, the machine in the middle, the store and the executions out.

One thread, woken by the FIFO, by shims, by errands and by the machine's timers; it never asks the store unless it was
rung. What the machine says is made durable before any of it is done, so no process exists under an identity that
the disk doesn't know. While the store can't be written (full, or held by somebody), nothing further is decided.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import FrameType
from typing import assert_never

from airflow_provider_dispatch.adapters.local.agent.clock import SteadyClock
from airflow_provider_dispatch.adapters.local.agent.errands import Errands
from airflow_provider_dispatch.adapters.local.agent.executions import Executions, Surroundings
from airflow_provider_dispatch.adapters.local.agent.locking import clear_folder
from airflow_provider_dispatch.adapters.local.agent.node import fetch_node
from airflow_provider_dispatch.adapters.local.doorbell import Doorbell
from airflow_provider_dispatch.adapters.local.environment import build_base_environment
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.lifecycle import messages
from airflow_provider_dispatch.adapters.local.lifecycle.machine import Machine
from airflow_provider_dispatch.adapters.local.lifecycle.queueing import NodeConfig
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key, Submission
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.adapters.local.shim.descent import become_subreaper
from airflow_provider_dispatch.adapters.local.store import agency, reading
from airflow_provider_dispatch.adapters.local.store.database import READ_PATIENCE_SECONDS, Database
from airflow_provider_dispatch.exceptions import DispatchError, UnavailableError

WRITE_PATIENCE_SECONDS = 2.0
LOST_PATIENCE_SECONDS = 3.0
# What waits for the kernel can wait 24 days at most, and a hold may end in a year.
LONGEST_SLEEP_SECONDS = 86_400.0
FIRST_RETRY, LONGEST_RETRY = timedelta(milliseconds=250), timedelta(seconds=10)
_log = logging.getLogger(__name__)


def supervise(
    layout: StoreLayout,
    doorbell: Doorbell,
    *,
    retire_after_seconds: float,
    pass_env: Sequence[str],
    when_listening: Callable[[], None],
) -> int:
    """Run an agent; the exit status of the process. A named border: whatever goes wrong in it ends the agent loudly.

    Its shims see that at once and end every rank; the next agent tells them lost. Better than running on half.
    """
    signal.signal(signal.SIGTERM, _leave)
    # If whoever started it ignores the ends of children, so would this process, and they would leave no trace.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    database = Database(layout)
    try:
        become_subreaper()
        agent = Agent(database, doorbell, retire_after=timedelta(seconds=retire_after_seconds), pass_env=pass_env)
        agent.take_over()
        when_listening()
        agent.serve()
    except Exception as error:  # noqa: BLE001 - the agent's supervisor, one of the named borders: logged, and the end
        _log.exception("the agent ends, and its ranks with it")
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - the last line is what a caller is shown
        return 1
    finally:
        database.close()
    return 0


class Agent:
    """The node.

    :param retire_after: how long it stays with nothing to do.
    """

    def __init__(
        self, database: Database, doorbell: Doorbell, *, retire_after: timedelta, pass_env: Sequence[str]
    ) -> None:
        self._database, self._doorbell, self._retire_after = database, doorbell, retire_after
        self._clock = SteadyClock()
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[messages.Input] = deque()
        self._queues = QueuesFile(database.layout.queues)
        self._executions = Executions(
            Surroundings(
                database.layout,
                self._selector,
                Errands(self._selector),
                build_base_environment(os.environ, pass_env),
                self._inbox.append,
            )
        )
        self._node = fetch_node()
        self._config = self._read_first_queues()
        self._tenure = agency.Tenure("", 0)
        self._machine = self._build_machine()
        self._submissions: dict[Key, Submission] = {}
        self._last_wish = 0
        self._is_rung = False
        self._unwritten: tuple[agency.Ledger, list[messages.Effect]] | None = None
        self._retry_at: datetime | None = None
        self._pause = FIRST_RETRY
        self._idle_since: datetime | None = None
        self._is_over = False

    # -- beginning and end -------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Take the store over from the last agent, settle what it left as far as that goes at once, and listen."""
        with self._database.write(READ_PATIENCE_SECONDS) as connection:
            self._tenure = agency.begin_tenure(connection, socket.gethostname())
        self._place = self._database.layout.database.stat()
        if self._tenure.is_first:
            clear_folder(self._database.layout.folder)
        self._reload()
        self._await_lost()
        self._read_wishes()
        self._inbox.append(messages.Tick())
        self._settle()
        self._listen()
        _log.info("agent %d listens; %d submissions", self._tenure.generation, len(self._submissions))

    def serve(self) -> None:
        """Work until there has been nothing to do for long enough."""
        while not self._is_over:
            self._turn()

    def _await_lost(self) -> None:
        """Leave what the last agent left a moment to end: who is answered first hears that it is lost."""
        until = time.monotonic() + LOST_PATIENCE_SECONDS
        while not self._executions.is_empty() and (left := until - time.monotonic()) > 0:
            self._call_back(left)

    def _reload(self) -> None:
        """Begin with what the store says; also when queues have changed."""
        with self._database.read() as connection:
            stored = reading.fetch_unfinished(connection)
        self._machine = self._build_machine()
        self._submissions = {}
        self._load(stored)
        for row in stored:
            if row.status.execution is not None and row.status.generation != self._tenure.generation:
                self._executions.reclaim(row.intent.key, row.status.execution.identity)

    def _load(self, stored: Sequence[reading.StoredSubmission]) -> None:
        """Take submissions in that the machine doesn't know, as an agent has last seen them."""
        known = [(row.seen, row.status) for row in stored if row.seen is not None]
        self._machine.load(known)
        for submission, status in known:
            self._submissions[submission.key] = submission
            if submission.stop is not None and status.execution is None:
                # The last agent died between the decision to remove it and the removal.
                self._inbox.append(messages.IntentChanged(submission))

    def _build_machine(self) -> Machine:
        self._config_in_use = self._config
        return Machine(self._config, generation=self._tenure.generation)

    def _read_first_queues(self) -> NodeConfig:
        """The queues; none at all while they can't be read: then what was left is settled, and nothing is admitted."""
        try:
            return self._queues.build_config(self._node)
        except DispatchError as error:
            _log.error("nothing is admitted until the queues are mended: %s", error)
            return NodeConfig(self._node, has_open_queues=False)

    def _listen(self) -> None:
        self._doorbell.listen()
        self._selector.register(self._doorbell.fd, selectors.EVENT_READ, self._take_ring)

    def _stop_listening(self) -> None:
        if self._doorbell.fd >= 0:
            self._selector.unregister(self._doorbell.fd)
            self._doorbell.stop_listening()

    def _retire(self) -> None:
        """Leave, unless somebody has wanted something just before we stopped listening."""
        self._stop_listening()
        self._read_wishes()
        if self._inbox:
            self._idle_since = None
            self._listen()
        else:
            _log.info("agent %d has had nothing to do for %s and leaves", self._tenure.generation, self._retire_after)
            self._is_over = True

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._call_back(self._derive_timeout())
        if not self._executions.is_empty() and not self._is_store_in_place():
            self._drain("the store was removed under this agent")
            return
        now = self._clock.now()
        if self._retry_at is not None and now < self._retry_at:
            return
        try:
            self._advance(now)
        except UnavailableError as error:
            _log.warning("the store can't be used now, trying again in %s: %s", self._pause, error)
            self._retry_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_RETRY)
        else:
            self._retry_at, self._pause = None, FIRST_RETRY

    def _call_back(self, timeout_seconds: float | None) -> None:
        """Wait for events, and let those take them who wait for them."""
        due = [seconds for seconds in (timeout_seconds, self._executions.seconds_until_look()) if seconds is not None]
        for key, _events in self._selector.select(min(due, default=None)):
            # An earlier callback of this turn may have closed what this one is about.
            if self._selector.get_map().get(key.fd) == key:
                key.data()
        self._executions.look_after()

    def _advance(self, now: datetime) -> None:
        if self._unwritten is not None:
            self._settle()
        if self._is_rung:
            self._read_wishes()
        if self._is_over:  # drained: what is due now is the next agent's
            return
        timer = self._machine.next_timer()
        if timer is not None and timer <= now:
            self._inbox.append(messages.Tick())
        self._settle()
        self._note_idleness(now)

    def _note_idleness(self, now: datetime) -> None:
        if self._is_over or not (self._machine.is_idle() and self._executions.is_empty()):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._idle_since is not None and now >= self._idle_since + self._retire_after:
            self._retire()

    def _derive_timeout(self) -> float | None:
        """Seconds until something is due; None while only others can give us something to do."""
        if self._retry_at is not None:
            due = [self._retry_at]
        elif self._inbox or self._is_rung:
            return 0.0
        else:
            ends = self._idle_since + self._retire_after if self._idle_since is not None else None
            due = [time for time in (self._machine.next_timer(), ends) if time is not None]
        if not due:
            return None
        return min(max(0.0, (min(due) - self._clock.now()).total_seconds()), LONGEST_SLEEP_SECONDS)

    # -- what callers want -------------------------------------------------------------------------------------------

    def _take_ring(self) -> None:
        self._doorbell.answer()
        self._is_rung = True

    def _read_wishes(self) -> None:
        if not self._database.has_own_schema():
            self._drain("the store's tables are of another version than this agent")
            return
        self._change_queues()
        with self._database.read() as connection:
            wishes = reading.fetch_wishes(connection, self._last_wish)
            unknown = dict.fromkeys(
                wish.submission.key for wish in wishes if wish.submission.key not in self._submissions
            )
            stored = reading.fetch_submissions(connection, unknown)
        self._load(stored)
        self._inbox.extend(messages.IntentChanged(wish.submission) for wish in wishes)
        self._last_wish = wishes[-1].sequence if wishes else self._last_wish
        self._is_rung = False

    def _change_queues(self) -> None:
        try:
            if self._queues.has_changed():
                self._config = self._queues.build_config(self._node)
        except DispatchError as error:
            _log.error("the queues stay as they are: %s", error)
        if self._config is not self._config_in_use:
            self._reload()
            self._inbox.append(messages.Tick())

    def _is_store_in_place(self) -> bool:
        try:
            return os.path.samestat(self._place, self._database.layout.database.stat())
        except FileNotFoundError:
            return False

    def _drain(self, why: str) -> None:
        """Nothing can be written any more, so end what runs, well, and leave."""
        _log.warning("%s; it ends its executions and leaves", why)
        self._stop_listening()
        self._executions.end_all("stop")
        while not self._executions.is_empty():
            self._call_back(None)
        self._inbox.clear()
        self._is_over = True

    # -- deciding, writing, doing ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Work off the inputs, one durable step after the other, until nothing is left to do."""
        while self._unwritten is not None or self._inbox:
            if self._unwritten is None:
                self._unwritten = self._decide()
            ledger, effects = self._unwritten
            if not ledger.is_empty:
                with self._database.write(WRITE_PATIENCE_SECONDS) as connection:
                    agency.commit_ledger(connection, ledger, self._tenure)
            self._unwritten = None
            for effect in effects:
                self._carry_out(effect)

    def _decide(self) -> tuple[agency.Ledger, list[messages.Effect]]:
        """Give the machine all inputs there are; what they have led to."""
        ledger = agency.Ledger(self._clock.now(), last_wish=self._last_wish)
        effects: list[messages.Effect] = []
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, messages.IntentChanged):
                self._submissions[message.submission.key] = message.submission
                ledger.seen[message.submission.key] = message.submission
            # Each at a moment of its own: who wanted room first is told apart, also within one turn.
            ledger.now = self._clock.now()
            outcome = self._machine.apply(message, ledger.now)
            ledger.statuses.update(outcome.statuses)
            ledger.notes.extend(outcome.notes)
            effects.extend(outcome.effects)
        ledger.submissions = {key: self._submissions[key] for key in ledger.statuses}
        ledger.lifted = [effect for effect in effects if isinstance(effect, messages.LiftHold)]
        ledger.removed = [effect for effect in effects if isinstance(effect, messages.RemoveSubmission)]
        return ledger, effects

    def _carry_out(self, effect: messages.Effect) -> None:
        match effect:
            case messages.StartExecution(key, identity):
                self._executions.start(key, identity, self._submissions[key].request.spec)
            case messages.SpawnRole(key, _, role):
                self._executions.spawn(key, role)
            case messages.EndExecution(key, _, reason, grace):
                self._executions.end(key, reason.value, grace)
            case messages.LiftHold():
                self._is_rung = True  # the store has been changed by ourselves
            case messages.RemoveSubmission(key):
                self._submissions.pop(key, None)
            case _:
                assert_never(effect)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)
