# SPDX-License-Identifier: Apache-2.0
"""Which Airflow is installed: the only module that asks.

The Airflow-facing packages import these flags where an older Airflow lacks something. A pre-release counts as its
release. A flag that the lowest supported Airflow satisfies is deleted together with the branch it guards.
"""

from __future__ import annotations

from airflow import __version__ as _airflow_version
from packaging.version import Version

_RELEASE = Version(_airflow_version).release

AIRFLOW_V_3_3_PLUS: bool = _RELEASE >= (3, 3, 0)
"""Triggers have ``on_kill``."""

AIRFLOW_V_3_4_PLUS: bool = _RELEASE >= (3, 4, 0)
"""``on_kill`` no longer fires when a trigger merely moves to another triggerer."""
