# SPDX-License-Identifier: Apache-2.0
"""The examples do what they show."""
