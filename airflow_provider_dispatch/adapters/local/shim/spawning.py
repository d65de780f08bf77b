# SPDX-License-Identifier: Apache-2.0
"""Starts one process: own session, exact environment, no shell, and an error that says what was wrong.

Used by the shim for ranks and readiness commands. Forks: the shim has one thread, and never had another.
"""
# ruff: noqa: PTH123, S606 - pathlib would be the dearest import of the shim; a process is what this is about

from __future__ import annotations

import errno
import os
import signal

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    from typing import NoReturn

_ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def encode_text(text: str) -> bytes:
    """Text for the kernel: UTF-8 whatever the locale, bytes that were never UTF-8 kept."""
    return text.encode("utf-8", "surrogateescape")


def start_process(
    argv: list[str], *, env: dict[str, str], cwd: str, stdout_fd: int, stderr_fd: int, kept_fd: int
) -> int:
    """Start *argv* in a session of its own, with ``/dev/null`` as input; its process id, once it runs.

    :param kept_fd: a descriptor that the process inherits under the same number.
    :raises OSError: what went wrong, with the number and a text that names the command or folder.
    """
    report_fd, error_fd = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, env, cwd, (stdout_fd, stderr_fd, kept_fd), error_fd)
    except OSError:
        os.close(report_fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(error_fd)
    with open(report_fd, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        raise _build_error(failure, argv, cwd)
    return pid


def _become(argv: list[str], env: dict[str, str], cwd: str, fds: tuple[int, int, int], error_fd: int) -> NoReturn:
    step = b"start"
    try:
        os.setsid()
        stdout_fd, stderr_fd, kept_fd = fds
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout_fd, 1)
        os.dup2(stderr_fd, 2)
        os.set_inheritable(kept_fd, True)  # noqa: FBT003 - the standard library's signature
        # Signals stay blocked until their defaults are back, so that none is lost in between.
        _restore_signals()
        step = b"folder"
        os.chdir(encode_text(cwd))
        step = b"command"
        _execute([encode_text(part) for part in argv], {encode_text(k): encode_text(v) for k, v in env.items()})
    except OSError as error:
        os.write(error_fd, b"%b %d" % (step, error.errno or errno.EINVAL))
    except ValueError:  # a NUL in a word, or "=" in the name of a variable
        os.write(error_fd, b"%b %d" % (step, errno.EINVAL))
    finally:
        os._exit(127)


def _restore_signals() -> None:
    for number in _ALL_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_DFL:
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):  # two numbers that the C library keeps to itself
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure = OSError(errno.ENOENT, "")
    for folder in filter(None, env.get(b"PATH", os.defpath.encode()).split(b":")):
        try:
            os.execve(folder + b"/" + argv[0], argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # a later folder may hold one that can be executed; else this is the reason
            failure = error
    raise failure


def _build_error(failure: bytes, argv: list[str], cwd: str) -> OSError:
    step, number = failure.split()
    what = {b"folder": f"working folder {cwd!r}", b"command": f"command {argv[0]!r}"}.get(step, "process")
    return OSError(int(number), f"{what}: {os.strerror(int(number))}")
