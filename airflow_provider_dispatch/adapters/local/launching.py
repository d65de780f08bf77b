# SPDX-License-Identifier: Apache-2.0
"""Starts an agent when none listens, and waits until it does. Starting an agent is no write.

Called, from worker threads, by whoever needs one: the writing verbs, ``inspect`` and the watch. The agent is detached:
it belongs to nobody's session, process group or parent, and it survives whoever started it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from airflow_provider_dispatch.adapters.local.doorbell import ring
from airflow_provider_dispatch.adapters.local.environment import build_agent_environment
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.adapters.local.store.place import ensure_folder
from airflow_provider_dispatch.exceptions import UnavailableError, cut_text

LARGEST_LOG_BYTES = 1024 * 1024
LISTENING, ELSEWHERE = b"listening", b"elsewhere"
_AGENT = "airflow_provider_dispatch.adapters.local.agent"
_PAUSE_SECONDS = 0.05


def ensure_agent(settings: LocalSettings, patience_seconds: float) -> None:
    """Wake the agent of the store, or start one and wait until it listens.

    :param patience_seconds: at most; cut to the setting ``agent_start_seconds``.
    :raises UnavailableError: none could be started in time; what was written stays written.
    """
    until = time.monotonic() + min(patience_seconds, settings.agent_start_seconds)
    while not ring(settings.layout):
        if time.monotonic() >= until:
            raise UnavailableError(f"no agent answers for the store in {settings.layout.folder}; try again")
        answer = _start_agent(settings, until)
        if answer == ELSEWHERE:
            # Another has the lock and is beginning or leaving.
            time.sleep(_PAUSE_SECONDS)
        elif answer != LISTENING:
            raise UnavailableError(_describe_failure(settings, is_late=time.monotonic() >= until))


def _start_agent(settings: LocalSettings, until: float) -> bytes:
    """Start an agent; what it says about itself, or nothing if it dies or takes too long."""
    folder = settings.layout.folder
    ensure_folder(folder)
    with translating("start an agent in", folder):
        told_fd, tell_fd = os.pipe()
        try:
            log_fd = _open_log(settings.layout.agent_log)
            try:
                _spawn(settings, tell_fd, log_fd)
            finally:
                os.close(log_fd)
                os.close(tell_fd)
            return _read_answer(told_fd, until)
        finally:
            os.close(told_fd)


def _spawn(settings: LocalSettings, tell_fd: int, log_fd: int) -> None:
    options = [str(settings.retire_after_seconds), str(tell_fd), *settings.pass_env]
    command = [sys.executable, "-P", "-m", _AGENT, str(settings.layout.folder), *options]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        cwd=settings.layout.folder,
        env=build_agent_environment(os.environ, settings.pass_env),
        pass_fds=(tell_fd,),
        start_new_session=True,
        umask=0o077,
    )
    # It forks at once and its child is the agent: this one is over in a moment.
    process.wait()


def _open_log(path: Path) -> int:
    # Another that starts an agent may do the same at the same time.
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LARGEST_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _read_answer(fd: int, until: float) -> bytes:
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
        return b""
    return os.read(fd, 64)


def _describe_failure(settings: LocalSettings, *, is_late: bool) -> str:
    log = settings.layout.agent_log
    try:
        last = log.read_bytes()[-2000:].decode("utf-8", "replace").strip().rpartition("\n")[2]
    except OSError:
        last = ""
    what = "did not answer in time" if is_late else "ended at once"
    return f"the agent for {settings.layout.folder} {what}; see {log}: {cut_text(last)}"
