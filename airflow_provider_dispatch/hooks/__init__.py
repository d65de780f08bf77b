# SPDX-License-Identifier: Apache-2.0
"""Connections and names: how Airflow's words become an adapter and the jobs it is asked about."""
