# SPDX-License-Identifier: Apache-2.0
"""`open`: takes our gate from a submission, once and for ever, and leaves everybody else's.

The adapter calls it. Never waits until the job is admitted.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.deadlines import within
from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch, build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_plain
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref
from airflow_provider_dispatch.adapters.kubeflow.plain_mode import advance
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjob
from airflow_provider_dispatch.core.job_ref import JobRef


async def open_gate(
    client: KubeClient, settings: KubeflowSettings, ref: JobRef, *, deadline: datetime, now: datetime
) -> None:
    """Remove our gate and no other. In plain mode the job is then resumed, if nothing else keeps it.

    :raises JobNotFoundError: no such submission.
    """
    async with within(deadline, now, "an opening"):
        while True:
            trainjob = await fetch_trainjob(client, settings, ref)
            try:
                opened = await patch_trainjob(client, trainjob, _build_open_patch(trainjob))
            except StaleObjectError:
                continue
            break
        if opened is not trainjob:
            await record_decision(client, trainjob, "opened", "our gate was removed", at=now)
        if is_plain(trainjob):
            await advance(client, settings, read_ref(trainjob), now=now)


def _build_open_patch(trainjob: Raw) -> Patch:
    listed = fields.annotation(trainjob, words.ADMISSION_GATED_BY)
    gates = [gate for gate in listed.split(",") if gate]
    others = ",".join(gate for gate in gates if gate != words.GATE)
    return build_patch(trainjob, annotations={words.ADMISSION_GATED_BY: others or None})
