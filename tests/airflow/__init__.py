# SPDX-License-Identifier: Apache-2.0
"""Tests against a real Airflow, each in its own processes."""
