# SPDX-License-Identifier: Apache-2.0
"""One suite for every adapter: each promise of the contract is a test in it."""
