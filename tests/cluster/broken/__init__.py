# SPDX-License-Identifier: Apache-2.0
"""Clusters that are broken on purpose, each in one way, and what preflight says of them."""
