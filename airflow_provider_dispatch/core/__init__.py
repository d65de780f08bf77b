# SPDX-License-Identifier: Apache-2.0
"""The contract's own ideas, pure: no I/O, no clock, no Airflow, no client, no logging.

Adapters and everything above them import it; it imports the exceptions alone.
"""
