# SPDX-License-Identifier: Apache-2.0
"""Startup order on real pods: names that resolve before those who ask exist, ports that answer, both directions.

The contract suite shows in which order ranks come up, also after a restart and a release. Here the ranks themselves
prove what the order is for: whoever waited finds whom it waited for, under its name, at the first try, every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import soon
from tests.contract.stage_kubeflow import KubeflowStage
from tests.contract.stage_processes import RANK, wait_until

PORT = 7077
SERVES = f"""
import os, socket, time
if os.fork() == 0:
    name = "-".join(os.environ[key] for key in ("DISPATCH_JOB_ID", "DISPATCH_ROLE", "DISPATCH_RANK"))
    ready = os.path.join(os.environ["DISPATCH_STATE_DIR"], name + "." + os.environ["DISPATCH_EPOCH"] + ".ready")
    while not os.path.exists(ready):
        time.sleep(0.05)
    server = socket.create_server(("", {PORT}))
    while True:
        client, _ = server.accept()
        client.sendall(os.environ["DISPATCH_EPOCH"].encode())
        client.close()
"""
"""Listens once the rank is told that it is ready, and tells its epoch to whoever calls. Before ``rank.py``, as a child
of its first process, it ends with it."""
CALLS = f"""
import json, os, socket, time
def call(host):
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        return dict(host=host, problem=str(error))
    try:
        with socket.create_connection((address, {PORT}), 10) as server:
            return dict(host=host, epoch=server.recv(100).decode(), address=address)
    except OSError as error:
        return dict(host=host, address=address, problem=str(error))
hosts = os.environ.get("HOSTS", os.environ["DISPATCH_LEADER_ADDR"]).split()
note = dict(epoch=os.environ["DISPATCH_EPOCH"], began=time.time(), calls=[call(host) for host in hosts])
name = "-".join(os.environ[key] for key in ("DISPATCH_JOB_ID", "DISPATCH_ROLE", "DISPATCH_RANK"))
with open(os.path.join(os.environ["DISPATCH_STATE_DIR"], name + ".calls"), "a") as file:
    file.write(json.dumps(note) + "\\n")
"""
"""Calls whom it waited for, once and before anything else, and notes what came of it."""


class OrderStage(KubeflowStage):
    """With ranks that serve, and ranks that call them."""

    def serving(self, name: str, **fields: Any) -> dict[str, object]:
        """Ready when its port answers."""
        return self._before(SERVES, name, readiness={"tcp_port": PORT}, **fields)

    def calling(self, name: str, **fields: Any) -> dict[str, object]:
        return self._before(CALLS, name, **fields)

    def _before(self, prelude: str, name: str, **fields: Any) -> dict[str, object]:
        role = self.role("run", name=name, **fields)
        return role | {"command": ["python3", "-c", prelude + RANK.read_text(), "run"]}

    def leader_address(self, ref: JobRef) -> str:
        """Of these jobs, whose leader has a name of its own."""
        return super().leader_address(ref).replace("-node-0-0.", "-leader-0-0.")

    def calls(self, ref: JobRef, role: str, rank: int = 0) -> list[dict[str, Any]]:
        """What came of each call, one line for each start of the rank."""
        path: Path = self.find_control(ref.job) / f"{ref.job}-{role}-{rank}.calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def stage(controlled_bed: Bed) -> OrderStage:
    return OrderStage(controlled_bed)


@pytest.fixture
def plain_stage(controlled_bed: Bed) -> OrderStage:
    return OrderStage(controlled_bed, is_plain=True)


def running(seen: Observation, role: str) -> int:
    return next(ranks.running for ranks in seen.ranks if ranks.role == role)


def has(role: str, count: int, executions: int) -> Callable[[Observation], bool]:
    return lambda seen: seen.executions == executions and running(seen, role) == count


async def found(at: OrderStage, ref: JobRef, role: str, rank: int, *, starts: int) -> list[str]:
    """Whom the rank called at its last start; each answered at once and belongs to the very same execution."""
    await wait_until(lambda: len(at.calls(ref, role, rank)) == starts, f"the calls of {role} {rank}", at.patience)
    last = at.calls(ref, role, rank)[-1]
    for one in last["calls"]:
        assert one.get("epoch") == last["epoch"], last
    return [one["host"] for one in last["calls"]]


async def come_up(at: OrderStage, ref: JobRef, executions: int) -> None:
    """The leader first: no worker exists before it serves, and every worker finds it at the first try."""
    waiting = await at.until(ref, has("leader", 1, executions))
    assert (waiting.state, waiting.waiting_role, running(waiting, "worker")) == (State.STARTING, "leader", 0)
    assert len(at.calls(ref, "worker")) == executions - 1
    await at.tell(ref, "ready", role="leader")
    await at.reach(ref, State.RUNNING)
    for rank in (0, 1):
        assert await found(at, ref, "worker", rank, starts=executions) == [at.leader_address(ref)]


@pytest.mark.parametrize("mode", ["kueue", "plain"])
def test_a_worker_finds_its_leader_at_the_first_try_also_after_a_restart_and_a_release(
    stage, plain_stage, mode
) -> None:
    async def scenario(at: OrderStage) -> None:
        leader = at.serving("leader")
        worker = at.calling("worker", nodes=2, after=[{"role": "leader", "when": "ready"}])
        ref = await at.start(at.roles(leader, worker, max_restarts=1))
        await at.adapter.open(ref, deadline=soon())
        await come_up(at, ref, 1)
        await at.tell(ref, "exit 1", role="worker", rank=1)
        await come_up(at, ref, 2)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await come_up(at, ref, 3)
        assert [line["epoch"] for line in at.calls(ref, "worker")] == ["1000001", "1000002", "1000003"]

    (stage if mode == "kueue" else plain_stage).play(scenario)


async def workers_up(at: OrderStage, ref: JobRef, executions: int) -> None:
    """The launcher last: it doesn't exist while one of the workers doesn't serve, and it finds all of them."""
    await at.until(ref, has("worker", 2, executions))
    await at.tell(ref, "ready", role="worker", rank=1)
    half = await at.until(ref, lambda o: o.executions == executions and sum(role.ready for role in o.ranks) == 1)
    assert (half.state, half.waiting_role, running(half, "launcher")) == (State.STARTING, "worker", 0)
    assert len(at.calls(ref, "launcher")) == executions - 1
    await at.tell(ref, "ready", role="worker", rank=0)
    await at.reach(ref, State.RUNNING)
    assert len(await found(at, ref, "launcher", 0, starts=executions)) == 2


def test_a_launcher_finds_all_workers_at_the_first_try_also_after_a_restart_and_a_release(stage: OrderStage) -> None:
    async def scenario(at: OrderStage) -> None:
        hosts = "$(hostname | sed 's/-launcher-0-0$//')"
        worker = at.serving("worker", nodes=2)
        launcher = at.calling("launcher", after=[{"role": "worker"}])
        command = list(launcher["command"])  # type: ignore[call-overload]  # a role's command is a list
        names = " ".join(f"{hosts}-worker-0-{rank}.{hosts}" for rank in (0, 1))
        launcher["command"] = ["sh", "-c", f'HOSTS="{names}" exec "$0" "$@"', *command]
        spec = at.roles(launcher, worker, success_roles=["launcher"], leading_role="launcher", max_restarts=1)
        ref = await at.start(spec)
        name = build_object_name(ref.job, ref.submission)
        await at.adapter.open(ref, deadline=soon())
        await workers_up(at, ref, 1)
        assert [one["host"] for one in at.calls(ref, "launcher")[0]["calls"]] == [
            f"{name}-worker-0-{rank}.{name}" for rank in (0, 1)
        ]
        await at.tell(ref, "exit 1", role="worker", rank=0)
        await workers_up(at, ref, 2)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await workers_up(at, ref, 3)
        await at.tell(ref, "exit 0", role="launcher")
        await at.reach(ref, State.SUCCEEDED)

    stage.play(scenario)


def test_the_name_of_the_leader_resolves_while_it_is_not_ready(stage: OrderStage) -> None:
    """Ranks without an order between them meet at the leader as well: it has its name before it serves."""

    async def scenario(at: OrderStage) -> None:
        leader = at.serving("leader")
        worker = at.calling("worker", after=[{"role": "fetch", "when": "complete"}])
        fetch = at.role("run", name="fetch")
        ref = await at.start(at.roles(leader, worker, fetch, success_roles=["worker"]))
        await at.adapter.open(ref, deadline=soon())
        await at.until(ref, lambda o: running(o, "leader") == 1 and running(o, "fetch") == 1)
        await at.tell(ref, "exit 0", role="fetch")
        await wait_until(lambda: len(at.calls(ref, "worker")) == 1, "the worker's call", at.patience)
        ((call,), is_up) = at.calls(ref, "worker")[0]["calls"], (await at.adapter.inspect(ref)).state
        assert call["host"] == at.leader_address(ref)
        assert call.get("address"), "it resolves"
        assert "epoch" not in call, "nobody listens yet"
        assert is_up is State.STARTING

    stage.play(scenario)
