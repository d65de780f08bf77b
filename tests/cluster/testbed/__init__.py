# SPDX-License-Identifier: Apache-2.0
"""A real two-node Kubernetes with Kueue, JobSet and Trainer, as processes of this machine; see ``instance``."""
