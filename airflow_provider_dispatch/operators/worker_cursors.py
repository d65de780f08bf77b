# SPDX-License-Identifier: Apache-2.0
"""How far a job's output has been printed by a worker, in the same XCom that the trigger of the task goes on from.

A worker talks to its supervisor by plain calls: the asynchronous ones of the triggerer don't exist in ``dag.test()``.
The output printer of a leg loads and saves here; nothing else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_dispatch.triggers.cursors import XCOM_KEY, Cursors

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


def pull_own(instance: RuntimeTaskInstanceProtocol, key: str) -> object:
    """An XCom that this task instance pushed in an earlier leg; None when it didn't."""
    index = instance.map_index
    map_index = index if index is not None and index >= 0 else None
    found: object = instance.xcom_pull(task_ids=instance.task_id, key=key, map_indexes=map_index)
    return found


class WorkerCursors:
    """A store of cursors for the task instance that runs.

    :param is_resumed: an earlier leg of this try may have saved some; a try begins without.
    """

    def __init__(self, instance: RuntimeTaskInstanceProtocol, *, is_resumed: bool) -> None:
        self._instance, self._is_resumed = instance, is_resumed

    async def load(self) -> Cursors:
        """What was saved last."""
        if not self._is_resumed:
            return {}
        found = await asyncio.to_thread(pull_own, self._instance, XCOM_KEY)
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, Mapping) else {}

    async def save(self, cursors: Cursors) -> None:
        """Replace it."""
        await asyncio.to_thread(self._instance.xcom_push, XCOM_KEY, dict(cursors))
