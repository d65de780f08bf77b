# SPDX-License-Identifier: Apache-2.0
"""Every process knows which execution it is; executions are ordered over holds, restarts and submissions."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.core.state import Cause, State
from tests.contract.stage import Difference, Stage, soon

SECRET = "AIRFLOW__CORE__FERNET_KEY"
VALUE = "hf_never-to-be-shown"


def test_a_process_sees_its_identity_and_what_its_runtime_promises(stage: Stage, monkeypatch) -> None:
    monkeypatch.setenv(SECRET, "never to be seen")

    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2), attempt=7)
        await at.begun(ref, 1_000_001)
        seen = await at.adapter.inspect(ref)
        assert seen.execution is not None
        assert seen.execution.attempt_id == f"{ref.job}.1.7.1.0"
        env = await at.environment(ref, rank=1)
        if not env:
            return
        identity = {key: env[key] for key in env if key.startswith("DISPATCH_")}
        paths = {identity.pop("DISPATCH_RESULT_PATH"), identity.pop("DISPATCH_STATE_DIR")}
        assert len(paths) == 2
        assert identity == {
            "DISPATCH_JOB_ID": ref.job,
            "DISPATCH_SUBMISSION": "1",
            "DISPATCH_ATTEMPT": f"{ref.job}.1.7.1.0",
            "DISPATCH_EPOCH": "1000001",
            "DISPATCH_ROLE": "node",
            "DISPATCH_RANK": "1",
            "DISPATCH_NODES": "2",
            "DISPATCH_LEADER_ADDR": at.leader_address(ref),
        }
        torch = {key: env[key] for key in ("MASTER_ADDR", "RANK", "WORLD_SIZE", "PET_NNODES", "PET_NODE_RANK")}
        assert list(torch.values()) == [at.leader_address(ref), "1", "2", "2", "1"]
        assert int(env["MASTER_PORT"]) == int(env["PET_MASTER_PORT"]) > 1023
        assert not [key for key in env if key.startswith("AIRFLOW")]

    stage.play(scenario)


def test_the_state_folder_survives_and_the_result_path_does_not(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.begun(ref, 1_000_001)
        first = await at.environment(ref)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        seen = await at.reach(ref, State.RUNNING)
        await at.begun(ref, 1_000_002)
        assert seen.executions == 2
        second = await at.environment(ref)
        if first and second:
            assert first["DISPATCH_STATE_DIR"] == second["DISPATCH_STATE_DIR"]
            if Difference.A_PATH_PER_POD not in at.differences:
                assert first["DISPATCH_RESULT_PATH"] != second["DISPATCH_RESULT_PATH"]
            assert second["DISPATCH_EPOCH"] == "1000002"

    stage.play(scenario)


def test_a_rank_sees_the_value_of_a_secret_and_nobody_else_does(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        await at.keep_secret("hugging-face", "token", VALUE)
        ref = await at.run(at.spec("run", secrets={"HF_TOKEN": "hugging-face/token"}))
        await at.begun(ref, 1_000_001)
        env = await at.environment(ref)
        assert env.get("HF_TOKEN", VALUE) == VALUE
        seen, record = await at.adapter.inspect(ref), await at.adapter.find(ref.job)
        assert record.submissions[0].spec.roles[0].secrets == {"HF_TOKEN": "hugging-face/token"}
        assert VALUE not in repr((seen, record, await at.adapter.events(ref)))

    stage.play(scenario)


def test_a_secret_that_is_not_there_is_named(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run", secrets={"HF_TOKEN": "hugging-face/token"}))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.until(ref, lambda o: o.cause is Cause.MISCONFIGURED)
        assert "hugging-face" in seen.detail

    stage.play(scenario)


@pytest.mark.parametrize("end", ["exit 1", "exit 0", "stop"])
def test_a_later_submission_is_above_all_executions_of_an_earlier_one(stage: Stage, end: str) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", max_restarts=1))
        await at.begun(ref, 1_000_001)
        await at.tell(ref, "exit 4")
        await at.until(ref, lambda o: o.executions == 2 and o.state is State.RUNNING)
        await at.begun(ref, 1_000_002)
        if end == "stop":
            await at.adapter.stop(ref.job, reason="over", deadline=soon())
        else:
            await at.tell(ref, end)
            await at.reach(ref, State.FAILED, State.SUCCEEDED)
        again = await at.run(at.spec("run"), job=ref.job, submission=2)
        await at.begun(again, 2_000_001)
        assert at.epochs(ref.job) == [1_000_001, 1_000_002, 2_000_001]

    stage.play(scenario)
