# SPDX-License-Identifier: Apache-2.0
"""How long the legs of a deferred task must be at least, and what is therefore finished in the worker.

The scheduler can fail a task that resumes while the supervisor of its last leg still lingers, which it does for
``[workers] min_heartbeat_interval``. Operators and sensors ask here before they defer.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_dispatch.version_compat import conf

WAIT_IN_WORKER = timedelta(seconds=3)
"""What becomes true within this time isn't worth a deferral."""
SHORTEST_RESCHEDULE = timedelta(seconds=10)
MARGIN = timedelta(seconds=2)


def build_not_before(now: datetime) -> str:
    """The earliest time of an event, as ISO text, for a task that defers now."""
    interval = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    return (now + timedelta(seconds=interval) + MARGIN).isoformat()
