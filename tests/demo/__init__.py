# SPDX-License-Identifier: Apache-2.0
"""The demonstration that ``make demo`` shows."""
