# SPDX-License-Identifier: Apache-2.0
"""The shim: the small process between the agent and the ranks of one execution.

It starts the ranks, writes their output to files, tells the agent what happens to them, and makes sure that none of
their processes outlives it or the agent. The agent starts it by :func:`build_command` and speaks to it as
:mod:`~airflow_provider_dispatch.adapters.local.shim.wire` describes. It decides nothing about the job.

The modules of this folder import the standard library and each other alone, and little of either: a rank waits for
what they import.
"""

ENTRY = f"{__path__[0]}/__main__.py"


def build_command(python: str, *, control_fd: int, lock_fd: int) -> list[str]:
    """The command that starts a shim.

    :param control_fd: one end of a socket pair; its end of file ends everything the shim has started.
    :param lock_fd: the job's lock file, already locked. The ranks inherit it, so the lock lasts as long as any of them.
    """
    return [python, "-I", "-S", ENTRY, str(control_fd), str(lock_fd)]
