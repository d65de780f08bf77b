# SPDX-License-Identifier: Apache-2.0
"""Records what the objects of a job look like in every state and under every cause, for a new version of the cluster::

    python -m tests.cluster.record_objects kueue-0.19.2 [SCENE …]

Files go to ``tests/objects/<version>/<scene>.yaml``; nothing but ``managedFields`` is left out. Plays on a testbed of
its own, or on that of ``$DISPATCH_TEST_KUBECONFIG``. A scene that doesn't come about is named at the end, and the exit
status is 1.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from tests.cluster.scenes import SCENES
from tests.cluster.studio import Studio, build_settings, open_studio
from tests.cluster.testbed import pins
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.instance import Testbed
from tests.cluster.testbed.remote import AttachedBed
from tests.objects.recordings import RECORDED_AT

FOLDER = Path(__file__).parents[1] / "objects"
SCENE_SECONDS = 240
PARTS = {
    "Kubernetes": ("kubernetes", pins.KUBERNETES),
    "JobSet": ("jobset", pins.JOBSET),
    "Trainer": ("trainer", pins.TRAINER),
}


def main(arguments: Sequence[str]) -> int:
    """Record the scenes named, or all; the exit status."""
    if not arguments:
        print(__doc__)
        return 2
    version, *wanted = arguments
    names = [name for name in SCENES if name in wanted or not wanted]
    chosen = os.environ.get("DISPATCH_TEST_KUBECONFIG")
    if chosen:
        failed = asyncio.run(record(AttachedBed(Path(chosen).resolve().parent), version, names))
    else:
        with Testbed() as bed:
            failed = asyncio.run(record(bed, version, names))
    print(f"{len(names) - len(failed)} scenes recorded; not: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def describe_cluster() -> str:
    """Its parts besides Kueue, with the versions that are pinned now."""
    return ", ".join(f"{name} {pins.read_version(*source).removeprefix('v')}" for name, source in PARTS.items())


async def record(bed: Bed, version: str, names: Sequence[str]) -> list[str]:
    """Play the scenes one after another; those that failed."""

    def write(scene: str, story: str, objects: list[Manifest]) -> None:
        write_recording(FOLDER / version / f"{scene}.yaml", f"{describe_cluster()}, {version}; {story}", objects)

    namespace = f"record-{secrets.token_hex(3)}"
    async with await open_client(build_settings(bed.kubeconfig, namespace)) as client:
        studio = await open_studio(bed, client, namespace, write)
        try:
            return [name for name in names if not await play(studio, name)]
        finally:
            await studio.close()


async def play(studio: Studio, name: str) -> bool:
    """One scene; True when it was recorded."""
    studio.scene = name
    try:
        await asyncio.wait_for(SCENES[name](studio), SCENE_SECONDS)
    # A scene that fails must not keep the others from being recorded, whatever it was.
    except Exception:  # noqa: BLE001 - the border between scenes
        traceback.print_exc()
        return False
    finally:
        await studio.clear()
    return True


def write_recording(path: Path, story: str, objects: list[Manifest]) -> None:
    """One file, its story first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [_strip(one) for one in objects]
    text = yaml.safe_dump(kept, sort_keys=True, width=120, default_flow_style=False)
    moment = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    path.write_text(f"# {story}\n{RECORDED_AT}{moment}\n{text}")


def _strip(one: Manifest) -> Manifest:
    metadata = {key: value for key, value in one["metadata"].items() if key != "managedFields"}
    return {**one, "metadata": metadata}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
