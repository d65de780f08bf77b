# SPDX-License-Identifier: Apache-2.0
"""Tasks that wait for a point in the life of a job that another task owns."""
