# SPDX-License-Identifier: Apache-2.0
"""Where the agent begins: ``python -P -m …agent FOLDER RETIRE_AFTER_SECONDS TELL_FD [VARIABLE…]``.

Detaches itself, takes the lock of the store or leaves, and tells its starter through a descriptor how that went:
``listening``, ``elsewhere``, or nothing when it has failed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from airflow_provider_dispatch.adapters.local.agent.runner import supervise
from airflow_provider_dispatch.adapters.local.doorbell import Doorbell
from airflow_provider_dispatch.adapters.local.launching import ELSEWHERE, LISTENING
from airflow_provider_dispatch.adapters.local.layout import StoreLayout

LOCK_PATIENCE_SECONDS = 3.0


def main(arguments: list[str]) -> int:
    """Be the agent of the store in the folder given, until there is nothing more to do; the exit status."""
    folder, retire_after, tell_fd, *pass_env = arguments
    if os.fork() != 0:
        # The starter waits for this process only: the child's parent is the system's first process.
        os._exit(0)
    layout = StoreLayout(Path(folder))
    _open_journal()
    doorbell = Doorbell.take(layout, patience_seconds=LOCK_PATIENCE_SECONDS)
    if doorbell is None:
        _tell(int(tell_fd), ELSEWHERE)
        return 0
    return supervise(
        layout,
        doorbell,
        retire_after_seconds=float(retire_after),
        pass_env=pass_env,
        when_listening=lambda: _tell(int(tell_fd), LISTENING),
    )


def _tell(fd: int, answer: bytes) -> None:
    try:
        os.write(fd, answer)
    except BrokenPipeError:  # the starter has lost its patience, or its life
        logging.getLogger(__name__).info("whoever started this agent is gone")
    os.close(fd)


def _open_journal() -> None:
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%SZ"
    )
    logging.Formatter.converter = time.gmtime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
