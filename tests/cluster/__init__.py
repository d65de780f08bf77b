# SPDX-License-Identifier: Apache-2.0
"""Tests on a real Kubernetes with Kueue, JobSet and Trainer."""
