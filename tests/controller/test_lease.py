# SPDX-License-Identifier: Apache-2.0
import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import AnswerLostError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import LEASES
from airflow_provider_dispatch.controller.lease import LeaseKeeper, LeaseTerms
from airflow_provider_dispatch.exceptions import UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, Object
from tests.controller.world import World, asynchronous


def build_keeper(world: World, identity: str) -> LeaseKeeper:
    terms = LeaseTerms(words.LEASE_NAMESPACE, words.LEASE_NAME, identity)
    return LeaseKeeper(world.client, terms, monotonic=lambda: world.seconds, wall=world.wall)


def read_lease(world: World) -> Object:
    found = world.client.peek(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
    assert found is not None
    return found


@asynchronous
async def test_first_takes_it_and_second_waits(world: World):
    first, second = build_keeper(world, "first"), build_keeper(world, "second")
    assert (await first.attempt(), await second.attempt()) == (True, False)
    assert (first.is_held, second.is_held) == (True, False)
    assert read_lease(world)["spec"]["holderIdentity"] == "first"


@asynchronous
async def test_renewed_lease_is_never_taken(world: World):
    first, second = build_keeper(world, "first"), build_keeper(world, "second")
    for _ in range(20):
        assert await first.attempt()
        assert not await second.attempt()
        world.pass_time(5)


@asynchronous
async def test_holder_stops_before_another_may_begin(world: World):
    first, second = build_keeper(world, "first"), build_keeper(world, "second")
    await first.attempt()
    await second.attempt()
    for _ in range(40):
        world.pass_time(0.5)
        taken = await second.attempt()
        assert not (first.is_held and taken)
    assert second.is_held
    assert read_lease(world)["spec"]["leaseTransitions"] == 1


@asynchronous
async def test_a_stamp_of_another_clock_is_not_believed(world: World):
    await build_keeper(world, "first").attempt()
    read_lease(world)["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    assert not await build_keeper(world, "second").attempt()


@asynchronous
async def test_of_two_that_take_it_at_once_one_gets_it(world: World):
    await build_keeper(world, "gone").attempt()
    second, third = build_keeper(world, "second"), build_keeper(world, "third")
    await second.attempt()
    await third.attempt()
    world.pass_time(16)
    world.client.faults.append(Fault("patch", LEASES, StaleObjectError("the third was quicker")))
    assert await third.attempt() != await second.attempt()
    assert (second.is_held, third.is_held).count(True) == 1


@asynchronous
async def test_lost_answer_counts_as_no_renewal(world: World):
    keeper = build_keeper(world, "first")
    await keeper.attempt()
    world.pass_time(9)
    world.client.faults.append(Fault("patch", LEASES, AnswerLostError("nobody knows"), is_late=True))
    with pytest.raises(UnavailableError):
        await keeper.attempt()
    assert keeper.is_held
    world.pass_time(2)
    assert not keeper.is_held


@asynchronous
async def test_renewal_costs_one_request(world: World):
    keeper = build_keeper(world, "first")
    await keeper.attempt()
    before = len(world.client.requests)
    await keeper.attempt()
    assert len(world.client.requests) == before + 1


@asynchronous
async def test_renewal_survives_a_write_of_somebody_else(world: World):
    keeper = build_keeper(world, "first")
    await keeper.attempt()
    world.client.put(LEASES, read_lease(world), words.LEASE_NAMESPACE)
    assert await keeper.attempt()


@asynchronous
async def test_lease_that_somebody_deleted_is_made_again_by_its_holder(world: World):
    keeper = build_keeper(world, "first")
    assert await keeper.attempt()
    world.client.drop(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
    world.pass_time(5)
    assert await keeper.attempt()
    assert keeper.is_held
    assert read_lease(world)["spec"]["holderIdentity"] == "first"


@asynchronous
async def test_released_lease_is_taken_at_once(world: World):
    first, second = build_keeper(world, "first"), build_keeper(world, "second")
    await first.attempt()
    await first.release()
    assert not first.is_held
    assert await second.attempt()


@asynchronous
async def test_nobody_releases_the_lease_of_another(world: World):
    first, second = build_keeper(world, "first"), build_keeper(world, "second")
    await first.attempt()
    await second.attempt()
    world.pass_time(16)
    await second.attempt()
    await first.release()
    assert read_lease(world)["spec"]["holderIdentity"] == "second"


@asynchronous
async def test_keeping_outlives_an_api_server_that_is_away(world: World):
    keeper = build_keeper(world, "first")
    told: list[bool] = []

    class EnoughError(Exception):
        pass

    async def sleep(_seconds: float) -> None:
        told.append(keeper.is_held)
        world.pass_time(6)
        world.client.faults[:] = [Fault("patch", LEASES, UnavailableError("away"))] if len(told) in (1, 2) else []
        if len(told) == 4:
            raise EnoughError

    with pytest.raises(EnoughError):
        await keeper.keep(sleep)
    assert told == [True, True, False, True]
