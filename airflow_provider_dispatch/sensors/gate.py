# SPDX-License-Identifier: Apache-2.0
"""The sensor for what lies in front of a job's execution: its gate and its admission.

For DAG files: it names its points; :mod:`.goal` waits for them. It never opens a gate.
"""

from __future__ import annotations

from airflow_provider_dispatch.sensors.goal import DispatchGoalSensor


class DispatchGateSensor(DispatchGoalSensor):
    """Waits until a job stands behind its gate, until the gate is open, or until the job is admitted.

    :param until: ``gated``, ``opened`` (the default) or ``admitted``.

    For the other arguments see :class:`~airflow_provider_dispatch.sensors.base.DispatchJobBaseSensor`. Fails at once
    when the job is over before, and for ``gated`` when the gate is open already: it can't be closed again. Does not
    open a gate, and says nothing about gates of others.
    """

    choices = ("gated", "opened", "admitted")
    default_until = "opened"
