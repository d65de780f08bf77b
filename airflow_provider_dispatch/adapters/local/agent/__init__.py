# SPDX-License-Identifier: Apache-2.0
"""The agent: the one process that runs the jobs of a store, "the node".

Started on demand (``launching``), alone by a lock, gone when there is nothing to do. It feeds the lifecycle's machine
with what callers want and what happens to processes, makes durable what the machine says, and only then does it.
"""
