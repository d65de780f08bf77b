# SPDX-License-Identifier: Apache-2.0
"""A rank for real processes: behaves as its arguments say, then does what its control file tells it.

``rank.py BEHAVIOUR [ARGUMENT]`` with ``CONTROL`` naming a folder. Behaviours are those of the fake's programs. It takes
a lock per (job, role, rank) without blocking and reports an overlap itself: the proof that two executions never run at
once comes from the ranks, not from whoever started them. Standard library alone, so that it starts fast. As the first
process of a container, which no signal of its own ends, it plays init for another that behaves.
"""

import fcntl
import json
import os
import signal
import sys
import time

NAME = "-".join(os.environ[key] for key in ("DISPATCH_JOB_ID", "DISPATCH_ROLE", "DISPATCH_RANK"))
CONTROL = os.environ.get("CONTROL") or os.environ["DISPATCH_STATE_DIR"]


def path(ending: str) -> str:
    return os.path.join(CONTROL, f"{NAME}.{ending}")


def report(ending: str, text: str) -> None:
    with open(path(ending), "a") as file:
        file.write(text + "\n")


def claim() -> int:
    """Take the lock of this rank, or tell that somebody has it."""
    lock = os.open(path("lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("overlap", os.environ["DISPATCH_ATTEMPT"])
    return lock


def fork_away() -> None:
    """Leave a grandchild behind that has its own session, ignores TERM and keeps the lock."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(300)
        os._exit(0)


def obey(command: str) -> None:
    verb, _, argument = command.partition(" ")
    if verb == "exit":
        sys.stdout.flush()
        os._exit(int(argument))
    elif verb == "kill":
        os.kill(os.getpid(), int(argument))
    elif verb == "say":
        print(argument, flush=True)
    elif verb == "count":
        for number in range(int(argument)):
            print(f"line {number}", flush=number % 100 == 0)
        sys.stdout.flush()
    elif verb == "result":
        with open(os.environ["DISPATCH_RESULT_PATH"], "w") as file:
            file.write(argument)
    elif verb == "ready":
        open(path(f"{os.environ['DISPATCH_EPOCH']}.ready"), "w").close()
    elif verb == "grow":
        globals()["ballast"] = bytearray(os.urandom(1 << 20)) * int(argument)


def linger(seconds: float) -> None:
    began = time.monotonic()
    time.sleep(seconds)
    report("graces", str(time.monotonic() - began))
    os._exit(0)


def behave(behaviour: str, arguments: list[str]) -> float | None:
    """Set up; the answer is when to exit 0, in seconds from now, or None."""
    if behaviour == "exit":
        os._exit(int(arguments[0]))
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif behaviour == "slow":
        signal.signal(signal.SIGTERM, lambda *_: linger(float(arguments[0])))
    elif behaviour == "forks":
        fork_away()
    if behaviour not in {"stubborn", "slow"}:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    return float(arguments[0]) if behaviour == "run" and arguments else None


def become_child() -> None:
    """Return in a child; its parent hands TERM on, and ends as the child did."""
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    ended, status = os.wait()
    while ended != child:  # an orphan that came to us
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    if os.getpid() == 1:
        become_child()
    claim()
    report("env", json.dumps(dict(os.environ)))
    report("epochs", os.environ["DISPATCH_EPOCH"])
    report("spans", f"{os.environ['DISPATCH_EPOCH']} {time.time()}")
    runs = behave(sys.argv[1], sys.argv[2:])
    print(f"DISPATCH_ATTEMPT={os.environ['DISPATCH_ATTEMPT']}", flush=True)
    print(f"DISPATCH_EPOCH={os.environ['DISPATCH_EPOCH']}", flush=True)
    ends = time.monotonic() + runs if runs is not None else None
    while ends is None or time.monotonic() < ends:
        try:
            with open(path("do")) as file:
                commands = file.read().splitlines()
            os.unlink(path("do"))
        except FileNotFoundError:
            commands = []
        for command in commands:
            obey(command)
        time.sleep(0.02)


main()
