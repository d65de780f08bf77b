# SPDX-License-Identifier: Apache-2.0
"""Whose a submission is: `adopt`, and the check that `stop` makes. Changed by compare-and-swap only."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.deadlines import within
from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump, read_owner, read_ref
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjob
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.exceptions import ConflictError


async def adopt(
    client: KubeClient,
    settings: KubeflowSettings,
    ref: JobRef,
    owner: Owner,
    *,
    expected: Owner,
    deadline: datetime,
    now: datetime,
) -> None:
    """Change the owner.

    :raises ConflictError: the owner is not *expected*.
    :raises JobNotFoundError: no such submission.
    """
    async with within(deadline, now, "an adoption"):
        while True:
            trainjob = await fetch_trainjob(client, settings, ref)
            if read_owner(trainjob) == owner:
                return
            check_owner(trainjob, expected)
            try:
                patch = build_patch(trainjob, annotations={words.OWNER_ANNOTATION: dump(owner)})
                await patch_trainjob(client, trainjob, patch)
            except StaleObjectError:
                continue
            break
        await record_decision(client, trainjob, "adopted", _describe(owner), at=now, key=owner.instance_id)


def check_owner(trainjob: Raw, expected: Owner) -> None:
    """Refuse when somebody else owns it.

    :raises ConflictError: names the owner.
    :raises ProtocolError: nobody can tell whose it is.
    """
    owner = read_owner(trainjob)
    if not owner.is_same_caller(expected):
        raise ConflictError(
            f"{read_ref(trainjob).id} is owned by {_describe(owner)} of deployment {owner.deployment!r}"
        )


def _describe(owner: Owner) -> str:
    return f"{owner.dag_id}.{owner.task_id} try {owner.try_number} ({owner.instance_id})"
