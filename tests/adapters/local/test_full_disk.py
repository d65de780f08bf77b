# SPDX-License-Identifier: Apache-2.0
"""A store on a disk that fills up while its agent lives."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import UnavailableError
from tests.adapters.local.world import World, new_job, python_job, soon


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 32 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def cramped_world(disk: Path) -> Iterator[World]:
    """Its store, with everything that belongs to it, lies on that disk."""
    world = World(disk / "dispatch")
    yield world
    world.end_agent()


def test_on_a_full_disk_nothing_is_half_made_and_all_goes_on_once_there_is_room(
    disk: Path, cramped_world: World
) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"))
        fill(disk / "ballast")
        other, large = new_job(), JobSpec(command=["true", "x" * 500_000])
        with pytest.raises(UnavailableError, match="full") as caught:
            await at.start(large, job=other)
        assert caught.value.is_retryable
        assert (await at.adapter.find(other)).newest is None
        assert (await at.adapter.inspect(ref)).state is State.RUNNING
        (at.layout.state_dir(ref.job) / "go").touch()
        await asyncio.sleep(1.0)
        (disk / "ballast").unlink()
        assert (await at.reach(ref, State.SUCCEEDED)).cause is None
        again = await at.start(large, job=other)
        await at.adapter.open(again, deadline=soon())
        assert (await at.reach(again, State.FAILED)).detail == "command 'true': Argument list too long"

    cramped_world.play(scenario)


def fill(path: Path) -> None:
    """Until nothing more fits beside it."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
