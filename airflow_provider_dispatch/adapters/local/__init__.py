# SPDX-License-Identifier: Apache-2.0
"""The embedded backend: the whole contract with processes on one machine."""
