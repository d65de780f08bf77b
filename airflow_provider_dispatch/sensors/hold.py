# SPDX-License-Identifier: Apache-2.0
"""The sensor for holds.

For DAG files: it names its points; :mod:`.goal` waits for them. It never holds or releases.
"""

from __future__ import annotations

from airflow_provider_dispatch.sensors.goal import DispatchGoalSensor


class DispatchHoldSensor(DispatchGoalSensor):
    """Waits until a job is held and its room is free, or until nobody holds it.

    :param until: ``held`` (the default) or ``released``.

    For the other arguments see :class:`~airflow_provider_dispatch.sensors.base.DispatchJobBaseSensor`. Fails at once
    when a job is over that should be held. Does not hold or release, and ``released`` is true as well of a job that
    nobody has held yet: let it follow the task that holds.
    """

    choices = ("held", "released")
    default_until = "held"
