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

FIRST, SECOND = 1_000_001, 1_000_002
CHECK = "UnsatisfiedAdmissionChecks"
V19 = {
    # -- before admission
    "gated": Expected(State.GATED),
    "gated-by-others": Expected(State.GATED, detail="gated by example.com/review", others=("example.com/review",)),
    "gated-by-others-and-us": Expected(
        State.GATED, detail="gated by example.com/review", others=("example.com/review",)
    ),
    "waiting-for-quota": Expected(State.QUEUED, pending=("WaitingForQuota", "300m more needed")),
    "exceeds-max-quota": Expected(
        State.QUEUED, Cause.NO_CAPACITY, "at most 1 of 2700m cpu", pending=("ExceedsMaxQuota", "maximum capacity (1)")
    ),
    "no-flavor": Expected(
        State.QUEUED,
        Cause.NO_CAPACITY,
        "has no example.com/slot",
        pending=("NoMatchingFlavor", "example.com/slot unavailable"),
    ),
    "queue-missing": Expected(
        State.QUEUED, Cause.NO_CAPACITY, "LocalQueue going doesn't exist", pending=("Misconfigured", "doesn't exist")
    ),
    "queue-stopped": Expected(State.QUEUED, pending=("Suspended", "is inactive")),
    "check-pending": Expected(State.QUEUED, pending=(CHECK, "is Pending")),
    # -- starting
    "fenced": Expected(State.STARTING, detail="2 pods wait for the admission controller to lift the fence"),
    "starting": Expected(State.STARTING, epoch=FIRST),
    "admitted-suspended": Expected(State.STARTING, detail="admitted; Kueue has not resumed its TrainJob yet"),
    "admitted-suspended-for-long": Expected(State.STARTING, Cause.MISCONFIGURED, "and Kueue can't resume its TrainJob"),
    "one-rank-ready": Expected(State.STARTING, ranks=(1, 2, 0, 0), epoch=FIRST),
    "startup-order": Expected(State.STARTING, ranks=(0, 1, 0, 0), epoch=FIRST, waiting_role="leader"),
    "leader-gone": Expected(
        State.FAILED, Cause.DEPENDENCY_FAILED, "leader ended before it was ready", ranks=(0, 0, 1, 0), epoch=FIRST
    ),
    "image-missing": Expected(State.STARTING, Cause.IMAGE, "rank 0 of node can't get its image", epoch=FIRST),
    "unschedulable": Expected(State.STARTING, Cause.NO_CAPACITY, "rank 0 of node finds no node", epoch=FIRST),
    "pods-refused": Expected(State.STARTING, Cause.NO_CAPACITY, "its objects are refused: Error creating: pods"),
    "command-missing": Expected(
        State.FAILED,
        Cause.MISCONFIGURED,
        "/there/is/none: no such file",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, 128, None),
    ),
    # -- running and held
    "running": Expected(State.RUNNING, ranks=(2, 2, 0, 0), epoch=FIRST),
    "holding": Expected(State.HOLDING, ranks=(2, 2, 0, 0), epoch=FIRST, holds=1),
    "holding-and-released": Expected(
        State.QUEUED, pending=(CHECK, "Reset to Pending after eviction"), ranks=(2, 2, 0, 0), epoch=FIRST
    ),
    "holding-waits": Expected(State.QUEUED, pending=(CHECK, "waiting for old pods"), ranks=(2, 2, 0, 0), epoch=FIRST),
    "held": Expected(State.HELD, epoch=FIRST, holds=1),
    "held-then-resumed": Expected(State.RUNNING, ranks=(2, 2, 0, 0), epoch=SECOND),
    "held-by-others": Expected(State.HELD, detail="held by somebody else", epoch=FIRST),
    "held-on-workload": Expected(
        State.HOLDING, detail="waits for the proof that its processes are gone", epoch=FIRST, holds=1
    ),
    "ended-well-by-hold": Expected(State.HELD, epoch=FIRST, holds=1),
    "preempted": Expected(State.QUEUED, pending=("WaitingForQuota", "more needed"), epoch=FIRST, evictions=1),
    "preempted-too-often": Expected(
        State.FAILED, Cause.PREEMPTED, "preempted 1 times; its spec allows 0", ranks=(1, 1, 0, 0), epoch=FIRST
    ),
    "queue-drained": Expected(State.QUEUED, pending=("Suspended", "is inactive"), epoch=FIRST, evictions=1),
    # -- ends
    "succeeded": Expected(State.SUCCEEDED, ranks=(0, 0, 2, 0), epoch=FIRST, result={"loss": 0.5}),
    "result-broken": Expected(
        State.FAILED,
        Cause.MISCONFIGURED,
        "the result has 4096 bytes or more; at most 4000",
        ranks=(0, 0, 1, 0),
        epoch=FIRST,
    ),
    "failed-with-code-now": Expected(
        State.FAILED,
        Cause.EXITED,
        "rank 1 of node exited with code 3",
        ranks=(1, 1, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 1, 3, None),
    ),
    "failed-with-code": Expected(
        State.FAILED,
        Cause.EXITED,
        "rank 1 of node exited with code 3",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 1, 3, None),
    ),
    "failed-with-signal-now": Expected(
        State.FAILED,
        Cause.EXITED,
        "rank 1 of node was ended by signal 11 (SIGSEGV)",
        ranks=(1, 1, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 1, None, 11),
    ),
    "failed-with-signal": Expected(
        State.FAILED,
        Cause.EXITED,
        "rank 1 of node was ended by signal 11 (SIGSEGV)",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 1, None, 11),
    ),
    "out-of-memory": Expected(
        State.FAILED,
        Cause.OUT_OF_MEMORY,
        "signal 9 (SIGKILL); it used more memory than it asked for",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, None, 9),
    ),
    "child-out-of-memory": Expected(
        State.FAILED,
        Cause.OUT_OF_MEMORY,
        "exited with code 5; it used more memory than it asked for",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, 5, None),
    ),
    "evicted-now": Expected(
        State.FAILED,
        Cause.EVICTED,
        "Eviction API: evicting",
        ranks=(2, 2, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, None, None),
    ),
    "evicted": Expected(
        State.FAILED, Cause.EVICTED, "Eviction API: evicting", epoch=FIRST, failed_rank=("node", 0, None, None)
    ),
    "node-pressure": Expected(
        State.FAILED,
        Cause.EVICTED,
        "ephemeral local storage usage exceeds",
        ranks=(0, 0, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, None, None),
    ),
    "deadline": Expected(
        State.FAILED, Cause.TIMEOUT, "activeDeadlineSeconds of 6 s ran out", ranks=(1, 1, 0, 0), epoch=FIRST
    ),
    "too-long-for-kueue": Expected(
        State.FAILED, Cause.TIMEOUT, "due to exceeding the maximum execution time", epoch=FIRST
    ),
    "node-lost-silent": Expected(
        State.RUNNING, Cause.NODE_LOST, "node node-2 does not answer", ranks=(1, 1, 0, 0), epoch=FIRST
    ),
    "node-lost": Expected(
        State.FAILED,
        Cause.NODE_LOST,
        "rank 0 of node was lost with node node-2",
        ranks=(1, 1, 0, 1),
        epoch=FIRST,
        failed_rank=("node", 0, None, None),
    ),
    "holding-unproven-silent": Expected(State.HOLDING, ranks=(1, 1, 0, 0), epoch=FIRST, holds=1),
    "holding-unproven": Expected(
        State.HOLDING, detail="waits for the proof that its processes are gone", epoch=FIRST, holds=1
    ),
    # -- restarts
    "restarted-soon": Expected(State.STARTING, ranks=(0, 0, 0, 2), epoch=FIRST),
    "restarted": Expected(State.RUNNING, ranks=(2, 2, 0, 0), epoch=SECOND),
    "recreated-waits": Expected(
        State.STARTING, detail="2 pods wait at the fence until older ones are proven gone", epoch=FIRST
    ),
    "recreated": Expected(State.RUNNING, ranks=(2, 2, 0, 0), epoch=SECOND),
    # -- removal; without its TrainJob nobody knows how many ranks a job had
    "stopping": Expected(State.STOPPING, Cause.STOPPED, "no longer wanted", ranks=(2, 2, 0, 0), epoch=FIRST),
    "stopping-pods": Expected(State.STOPPING, Cause.STOPPED, "no longer wanted", ranks=(1, 1, 0, 0), epoch=FIRST),
    "stopping-done": Expected(State.GONE, Cause.STOPPED, "no longer wanted"),
    "deleted-half": Expected(
        State.STOPPING, Cause.DELETED, "deleted by somebody else; 2 of its pods", ranks=(1, 1, 0, 0), epoch=FIRST
    ),
    "deleted": Expected(State.GONE, Cause.DELETED, "nobody asked for a stop"),
    "being-deleted": Expected(
        State.STOPPING, Cause.DELETED, "is being deleted by somebody else", ranks=(1, 1, 0, 0), epoch=FIRST
    ),
    # -- without Kueue
    "plain-gated": Expected(State.GATED),
    "plain-running": Expected(State.RUNNING, ranks=(2, 2, 0, 0), epoch=FIRST),
    "plain-holding": Expected(State.HOLDING, ranks=(2, 2, 0, 0), epoch=FIRST, holds=1),
    "plain-held": Expected(State.HELD, epoch=FIRST, holds=1),
}

EXPECTED = {f"kueue-0.20-devel/{name}": expected for name, expected in V20.items()}
EXPECTED |= {f"kueue-0.19.2/{name}": expected for name, expected in V19.items()}

EXCUSED_STATES = {State.UNKNOWN: "no cluster makes an object that this version can't read; made by hand in test_states"}
EXCUSED_CAUSES = {Cause.UNKNOWN: "what nobody can explain doesn't come when called; made by hand in test_ends"}
"""Of the closed sets, what no recording shows, and why."""
