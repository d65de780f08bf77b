# SPDX-License-Identifier: Apache-2.0
"""What each recording shows: the specification of the derivation."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dispatch.core.state import Cause, State


@dataclass(frozen=True)
class Expected:
    """What must be said.

    :ivar detail: part of the detail; empty: the detail is empty.
    :ivar pending: code and part of the message.
    :ivar ranks: of all roles together: ready, running, succeeded, failed.
    :ivar epoch: of the newest execution; None where nothing was lifted.
    :ivar trainjob: which one, where the file shows several.
    """

    state: State
    cause: Cause | None = None
    detail: str = ""
    pending: tuple[str, str] | None = None
    ranks: tuple[int, int, int, int] = (0, 0, 0, 0)
    epoch: int | None = None
    evictions: int = 0
    failed_rank: tuple[str, int, int | None, int | None] | None = None
    holds: int = 0
    waiting_role: str | None = None
    others: tuple[str, ...] = ()
    result: object = None
    trainjob: str = ""


V20 = {
    "check-pending": Expected(
        State.QUEUED, pending=("UnsatisfiedAdmissionChecks", "admission check dispatch-admission is Pending")
    ),
    "exceeds-max-quota": Expected(
        State.QUEUED,
        Cause.NO_CAPACITY,
        "current podset request (900m) > maximum capacity (250m)",
        pending=("ExceedsMaxQuota", "maximum capacity"),
        trainjob="t3",
    ),
    "failed": Expected(
        State.FAILED,
        Cause.EXITED,
        "rank 0 of node was ended by signal 15 (SIGTERM)",
        ranks=(0, 0, 0, 1),
        failed_rank=("node", 0, None, 15),
    ),
    "gated": Expected(State.GATED),
    "held": Expected(State.HELD, holds=1),
    "holding": Expected(State.HELD, holds=1),
    "image-missing": Expected(State.STARTING, Cause.IMAGE, "can't get its image"),
    "released-check-pending": Expected(
        State.QUEUED, pending=("UnsatisfiedAdmissionChecks", "admission check dispatch-admission is Pending")
    ),
    "running": Expected(State.RUNNING, ranks=(2, 2, 0, 0)),
    "running-again": Expected(State.RUNNING, ranks=(2, 2, 0, 0)),
    "starting": Expected(State.STARTING),
    "succeeded": Expected(State.SUCCEEDED, ranks=(0, 0, 2, 0), trainjob="t5"),
    "waiting-for-quota": Expected(
        State.QUEUED, pending=("WaitingForQuota", "insufficient unused quota for cpu"), trainjob="t2"
    ),
}

EXPECTED = {f"kueue-0.20-devel/{name}": expected for name, expected in V20.items()}
