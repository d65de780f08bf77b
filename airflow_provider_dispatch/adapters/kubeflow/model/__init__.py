# SPDX-License-Identifier: Apache-2.0
"""The pure half: objects in, manifests, observations and decisions out. The adapter and the controller share it."""
