# SPDX-License-Identifier: Apache-2.0
"""A caller of guarded processes that ends in the way its argument names, having told which processes it left.

Started by the tests of the guard. Beneath it: a plain child, a child that ignores TERM, and a daemon that has forked
twice into a session of its own, as servers do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
DAEMON_MAKER = (
    "import os, sys\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    "    os._exit(0)\n"
)
PROGRAMS = {"plain": [SLEEPER], "stubborn": [STUBBORN], "daemon": [DAEMON_MAKER, STUBBORN]}


def main(ending: str, folder: Path) -> None:
    with GuardedProcesses(folder, grace_seconds=1) as processes:
        logs = {name: folder / f"{name}.log" for name in PROGRAMS}
        for name, program in PROGRAMS.items():
            processes.start([sys.executable, "-c", *program], env=dict(os.environ), log=logs[name])
        while not all("ready" in log.read_text() for log in logs.values()):
            time.sleep(0.02)
        print(processes.guard_pid, *processes.alive(), flush=True)
        match ending:
            case "leaves the block":
                return
            case "raises":
                raise RuntimeError("as asked")
            case "kills itself":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                time.sleep(600)


if __name__ == "__main__":
    # A shell starts what runs in its background with Ctrl-C ignored; here it is what is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1], Path(sys.argv[2]))
