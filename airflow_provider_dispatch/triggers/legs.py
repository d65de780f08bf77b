# SPDX-License-Identifier: Apache-2.0
"""How long the legs of a deferred task must be at least, and what is therefore finished in the worker.

The scheduler fails a task that it has queued again when it learns only then that the worker is done with the last leg.
The worker's supervisor says so up to ``[workers] min_heartbeat_interval`` after the deferral, and the scheduler takes
note of it once a round: a second on a quiet machine, several on a busy one. Operators and sensors ask here before they
defer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.version_compat import conf

WAIT_IN_WORKER = timedelta(seconds=3)
"""What becomes true within this time isn't worth a deferral."""
SHORTEST_RESCHEDULE = timedelta(seconds=10)
MARGIN = timedelta(seconds=1)


def fetch_shortest_deferral() -> timedelta:
    """The interval for the supervisor, and as much again for the scheduler."""
    interval = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    return 2 * timedelta(seconds=interval) + MARGIN


def build_not_before(now: datetime) -> str:
    """The earliest time of an event, as ISO text, for a task that defers now."""
    return (now + fetch_shortest_deferral()).astimezone(UTC).isoformat()
