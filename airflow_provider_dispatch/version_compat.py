# SPDX-License-Identifier: Apache-2.0
"""Which Airflow is installed: the only module that asks.

The Airflow-facing packages import these flags where an older Airflow lacks something, and what has moved since 3.1.
A pre-release counts as its release. A flag that the lowest supported Airflow satisfies is deleted together with the
branch it guards.
"""

from __future__ import annotations

from airflow import __version__ as _airflow_version
from packaging.version import Version

_RELEASE = Version(_airflow_version).release

AIRFLOW_V_3_2_PLUS: bool = _RELEASE >= (3, 2, 0)
"""The configuration and all exceptions of tasks stand in the task SDK."""

AIRFLOW_V_3_3_PLUS: bool = _RELEASE >= (3, 3, 0)
"""Triggers have ``on_kill``."""

AIRFLOW_V_3_4_PLUS: bool = _RELEASE >= (3, 4, 0)
"""``on_kill`` no longer fires when a trigger merely moves to another triggerer."""

if AIRFLOW_V_3_2_PLUS:
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
else:
    from airflow.configuration import conf  # type: ignore[assignment]  # the same sections and options
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef]  # where 3.1 has them
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
    )

__all__ = [
    "AIRFLOW_V_3_2_PLUS",
    "AIRFLOW_V_3_3_PLUS",
    "AIRFLOW_V_3_4_PLUS",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "conf",
]
