# SPDX-License-Identifier: Apache-2.0
"""Admission on one machine: queues, quotas, gangs, priorities and preemption. Pure: state in, plan out.

The lifecycle asks :func:`.admission.decide_admission` after every change and carries the plan out. Amounts are whole
numbers: cpu in millicores, memory in bytes, anything else counted.
"""
