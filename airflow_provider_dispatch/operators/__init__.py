# SPDX-License-Identifier: Apache-2.0
"""Operators: tasks that start, open, hold, release and stop jobs, each deferred while it waits."""
