# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside a peer in the same run. Commands for people, not tests: `python -m tests.benchmarks`."""
