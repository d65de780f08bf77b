# SPDX-License-Identifier: Apache-2.0
import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS
from airflow_provider_dispatch.controller.once import look_after
from airflow_provider_dispatch.exceptions import RefusedError
from tests.adapters.kubeflow.api_server import ApiServer, Fault, run, status
from tests.adapters.kubeflow.objects import JOB, build_trainjob


def test_person_who_lacks_a_right_is_told_instead_of_waiting(tmp_path):
    async def scenario() -> None:
        async with ApiServer() as server:
            trainjob = build_trainjob()
            name = trainjob["metadata"].pop("name")
            server.put(TRAINJOBS, name, "default", **trainjob)
            refusal = status(403, "Forbidden", "person can't list workloads")
            server.faults.append(Fault(403, refusal, part_of_path="workloads", times=9))
            settings = {"kubeconfig": server.write_kubeconfig(tmp_path), "namespace": "default"}
            await look_after(settings, JOB, limit_seconds=30)

    with pytest.raises(RefusedError, match="person can't list workloads"):
        run(scenario())
