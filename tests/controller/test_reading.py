# SPDX-License-Identifier: Apache-2.0
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS, WORKLOADS
from tests.controller.world import UID, World, asynchronous


@asynchronous
async def test_what_another_replica_wrote_before_ready_is_seen_with_it():
    """It writes A before Ready, so the Workload is read first: Ready without A looks unjudged, and is taken back."""
    world = World()
    world.place_job()
    world.reserve()
    replica = await world.start_replica()
    before = len(world.client.requests)

    await replica.reader.read(UID)

    read = [request.resource for request in world.client.requests[before:]]
    assert read.index(WORKLOADS) < read.index(TRAINJOBS)
