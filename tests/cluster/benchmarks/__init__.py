# SPDX-License-Identifier: Apache-2.0
"""What the kubeflow adapter and its controller cost a cluster: ``python -m tests.cluster.benchmarks``."""
