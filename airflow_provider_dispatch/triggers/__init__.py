# SPDX-License-Identifier: Apache-2.0
"""Waiting without a worker: the one wait loop and the triggers that declare what they wait for."""
