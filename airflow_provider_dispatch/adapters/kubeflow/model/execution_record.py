# SPDX-License-Identifier: Apache-2.0
"""The execution record: which pods may run under which epoch, and what is known of their deaths.

The controller writes it on the TrainJob before it lifts a pod; a copy in the ledger outlives the TrainJob. The fence,
the readmission check and `stop` read it. It never looks at the cluster by itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.exceptions import ProtocolError

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place in the gang, filled by at most one pod of an execution.

    :param role: name of the replicated job.
    """

    role: str
    job_index: int
    completion_index: int


@dataclass(frozen=True, slots=True)
class RecordedPod:
    """A pod that may have been lifted.

    :param node: where it was last seen bound; None when nobody saw it bound.
    :param is_dead: proven once and for all, by what was seen or by a person.
    :param vanished_at: when it was first missed; None while its object is there.
    :param recorded_at: it was not lifted before.
    :param submission: whose pod it is.
    :param grace: what it was given between TERM and KILL; None when unknown.
    """

    slot: Slot
    uid: str
    name: str
    node: str | None = None
    is_dead: bool = False
    vanished_at: datetime | None = None
    recorded_at: datetime | None = None
    submission: int = 0
    grace: timedelta | None = None

    def __post_init__(self) -> None:
        for moment in (self.vanished_at, self.recorded_at):
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"{moment.isoformat()} has no time zone")


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """The newest execution of a submission, and older pods that may live.

    :param r: R; 0 before the first execution.
    :param a: A of the execution, ``r - restart``: above the submission's A where R would not have grown.
    :param jobset_uid: of the JobSet that made its pods.
    :param restart: J.
    :param undead: pods of earlier submissions. One that is proven dead stays until the ledger forgets it, so that
        it isn't doubted anew.
    """

    r: int = 0
    a: int = 0
    jobset_uid: str = ""
    restart: int = 0
    pods: tuple[RecordedPod, ...] = ()
    undead: tuple[RecordedPod, ...] = ()
    version: int = VERSION

    @property
    def unproven(self) -> tuple[RecordedPod, ...]:
        """Every pod that isn't proven dead: what `stop` leaves in the ledger."""
        return tuple(pod for pod in (*self.undead, *self.pods) if not pod.is_dead)

    def to_json(self) -> str:
        """The record in as few bytes as an annotation deserves: what is default is left out."""
        return json.dumps(_prune(wire.dump(self)), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ExecutionRecord:
        """What :meth:`to_json` wrote, of any version; unknown fields are ignored.

        :raises ProtocolError: something else; whoever believed it empty would start over living pods.
        """
        try:
            return wire.load(cls, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not JSON where an execution record should stand: {text[:60]!r}") from error


EMPTY_RECORD = ExecutionRecord()


def build_undead(record: ExecutionRecord, carried: Collection[RecordedPod], submission: int) -> tuple[RecordedPod, ...]:
    """The record's ``undead``, and pods of earlier submissions that only the ledger knows yet.

    :param carried: what the ledger holds.
    """
    known = {pod.uid for pod in (*record.undead, *record.pods)}
    # The ledger also has a copy of this submission's own record, of which the one on the TrainJob is the newer.
    new = (pod for pod in carried if pod.uid not in known and pod.submission < submission)
    return (*record.undead, *new)


def confirm_dead(record: ExecutionRecord, uids: Collection[str]) -> ExecutionRecord:
    """Note that a person vouches for the death of these pods."""

    def confirm(pods: tuple[RecordedPod, ...]) -> tuple[RecordedPod, ...]:
        return tuple(replace(pod, is_dead=True) if pod.uid in uids else pod for pod in pods)

    return replace(record, pods=confirm(record.pods), undead=confirm(record.undead))


def _prune(value: object) -> object:
    if isinstance(value, dict):
        return {key: _prune(part) for key, part in value.items() if part is not None and part is not False}
    if isinstance(value, list):
        return [_prune(part) for part in value]
    return value
