# SPDX-License-Identifier: Apache-2.0
"""What the agent does with executions, without a store: only what no whole agent shows at a moment of one's choice."""

from __future__ import annotations

import os
import resource
import selectors
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_dispatch.adapters.local.agent.errands import Errands
from airflow_provider_dispatch.adapters.local.agent.executions import Executions, Surroundings
from airflow_provider_dispatch.adapters.local.agent.orphans import Children
from airflow_provider_dispatch.adapters.local.agent.shim_link import ShimLink
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.lifecycle import messages
from airflow_provider_dispatch.adapters.local.processes import JobLock
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.state import Cause
from tests.adapters.local.shim_process import take_lock
from tests.adapters.local.world import new_job


def test_what_is_left_of_a_dead_agent_is_waited_for_once_however_often_it_is_asked(tmp_path) -> None:
    layout, told = StoreLayout(tmp_path), list[messages.Input]()
    identity = Identity(new_job(), submission=1, attempt=1, a=1, j=0)
    key = (identity.job, 1)
    layout.job_folder(identity.job).mkdir(parents=True)
    with selectors.DefaultSelector() as selector:
        errands = Errands(selector)
        executions = Executions(Surroundings(layout, selector, errands, {}, told.append))
        lock = JobLock.take(layout.job_lock(identity.job))
        assert lock is not None
        with lock:
            executions.reclaim(key, identity)
            executions.reclaim(key, identity)
            assert errands.pending == 1
        for ready, _ in selector.select(timeout=10):
            ready.data()
        executions.reclaim(key, identity)
        assert executions.is_empty()
    assert [type(message) for message in told] == [messages.ExecutionLost]


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Of those that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_the_machine_can_not_do_now_is_no_mistake_in_the_job(tmp_path) -> None:
    told = list[messages.Input]()
    identity = Identity(new_job(), submission=1, attempt=1, a=1, j=0)
    with selectors.DefaultSelector() as selector:
        executions = Executions(Surroundings(StoreLayout(tmp_path), selector, Errands(selector), {}, told.append))
        with no_descriptor_left():
            executions.start((identity.job, 1), identity, JobSpec(command=["true"]))
        assert executions.is_empty()
    (lost,) = told
    assert isinstance(lost, messages.ExecutionLost)
    assert (lost.cause, "Too many open files" in lost.detail) == (Cause.NODE_LOST, True)


class Keeping(Children):
    """Keeps a shim's end of its socket open, as a rank does that is stopped between its fork and its program."""

    def start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        self.shim = super().start(start)
        assert isinstance(self.shim.args, list)
        *_, control_fd, _lock_fd = self.shim.args
        self.kept_fd = os.dup(int(control_fd))
        return self.shim


def test_a_shim_is_seen_to_have_ended_though_its_socket_is_still_open(tmp_path) -> None:
    closed, children = list[bool](), Keeping()
    with selectors.DefaultSelector() as selector:
        link = ShimLink(
            take_lock(tmp_path / "lock"),
            selector,
            children=children,
            folder=tmp_path,
            take=lambda _: None,
            when_closed=lambda: closed.append(True),
        )
        try:
            link.look_after()
            link.kill()
            os.waitid(os.P_PID, children.shim.pid, os.WEXITED | os.WNOWAIT)
            link.look_after()
            assert closed == []  # what it said last may still be unread
            link.look_after()
            link.look_after()
            assert closed == [True]
        finally:
            os.close(children.kept_fd)
