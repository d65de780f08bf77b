# SPDX-License-Identifier: Apache-2.0
"""One submission while one input is worked on: its status, and what follows from it.

Only :mod:`.transitions` and :mod:`.machine` use it. A turn is closed once; closing moves the clocks and notes a change
of state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_observation, derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.messages import Effect, EndExecution, Note
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Execution, Status, Submission
from airflow_provider_dispatch.core.clocks import advance_clocks
from airflow_provider_dispatch.core.narration import describe
from airflow_provider_dispatch.core.state import State

_WEIGHT = {ending: weight for weight, ending in enumerate(Ending)}


@dataclass(slots=True)
class Turn:
    """Mutable for the length of one input."""

    submission: Submission
    status: Status
    now: datetime
    before: State | None
    effects: list[Effect] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    is_removed: bool = False

    @property
    def execution(self) -> Execution | None:
        """The execution whose processes may exist."""
        return self.status.execution

    @property
    def live(self) -> Execution:
        """The same where there must be one: process inputs reach a turn only while their execution stands."""
        assert self.status.execution is not None
        return self.status.execution

    @property
    def state(self) -> State:
        """The state as it is now."""
        return derive_submission_state(self.submission, self.status)

    def change(self, **changes: object) -> None:
        """Replace fields of the status."""
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]  # the fields' types differ

    def note(self, kind: str, message: str) -> None:
        """Add to the job's history."""
        epoch = self.status.identity.epoch if self.status.identity is not None else None
        self.notes.append(Note(self.submission.key, kind, message, epoch))

    def end_execution(self, reason: Ending) -> None:
        """Ask the execution to end, unless it is ending for a weightier reason."""
        execution = self.execution
        if execution is None or (execution.ending is not None and _WEIGHT[execution.ending] >= _WEIGHT[reason]):
            return
        self.change(execution=replace(execution, ending=reason))
        grace = self.submission.request.spec.grace_period
        self.effects.append(EndExecution(self.submission.key, execution.identity, reason, grace))

    def close(self) -> None:
        """Move the clocks and note the new state, if it is one."""
        state = self.state
        self.change(clocks=advance_clocks(self.status.clocks, state, self.now))
        if state is not self.before and not self.is_removed:
            observation = derive_observation(self.submission, self.status, self.now)
            self.note(state.value, describe(observation, self.now))
