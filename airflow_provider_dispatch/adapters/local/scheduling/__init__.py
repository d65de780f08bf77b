# SPDX-License-Identifier: Apache-2.0
"""The pure half of the local adapter: which job may run, decided from state and time alone."""
