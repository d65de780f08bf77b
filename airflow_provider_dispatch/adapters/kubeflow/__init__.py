# SPDX-License-Identifier: Apache-2.0
"""Kubeflow Trainer, JobSet and Kueue behind the port. ``model`` is pure; everything else talks to the API server."""
