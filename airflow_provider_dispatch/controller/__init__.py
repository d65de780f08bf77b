# SPDX-License-Identifier: Apache-2.0
"""``dispatch-admission``: the program that admits, fences and keeps the jobs of a cluster.

The shell around the pure decisions in ``adapters/kubeflow/model``: it watches, asks them, and writes what they say. It
runs once or more often beside the API server, apart from Airflow: ``python -m airflow_provider_dispatch.controller``.
"""
