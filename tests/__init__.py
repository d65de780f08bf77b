# SPDX-License-Identifier: Apache-2.0
"""The project's tests, demo and benchmarks."""
