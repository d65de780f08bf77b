# SPDX-License-Identifier: Apache-2.0
"""How many requests each verb sends to the API server, as its audit log tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_dispatch.core.state import State
from tests.benchmarks.figure import Figure
from tests.cluster.benchmarks.place import Asked, Place, open_place, soon
from tests.cluster.testbed.audit import Request
from tests.cluster.testbed.bed import Bed

T = TypeVar("T")
MOST_OF_A_START = 8
RANKS = 2


@dataclass
class _Ledger:
    """Counts what a verb asks while nobody watches the job."""

    place: Place
    asked: dict[str, Asked]

    async def count(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        mark = self.place.bed.mark_requests()
        answer = await act()
        self.asked[name] = self.place.fetch_asked(mark)
        return answer


async def measure_requests(bed: Bed) -> list[Figure]:
    """One job of two ranks through all of them; one before it, so that the first start finds nothing remembered."""
    async with open_place(bed) as place:
        asked = await _play(place)
    return [_build_figure(name, one) for name, one in asked.items()]


async def _play(place: Place) -> dict[str, Asked]:
    ledger, adapter = _Ledger(place, {}), place.adapter
    first, second = (place.build_request(nodes=RANKS) for _ in range(2))
    early = await ledger.count("start.first", lambda: adapter.start(first, deadline=soon()))
    await place.stop(early)
    ref = await ledger.count("start", lambda: adapter.start(second, deadline=soon()))
    await ledger.count("open", lambda: adapter.open(ref, deadline=soon()))
    await place.reach(ref, State.RUNNING)
    hold = await ledger.count("hold", lambda: place.hold(ref))
    await place.reach(ref, State.HELD)
    await ledger.count("release", lambda: adapter.release(ref, hold, deadline=soon()))
    await place.reach(ref, State.RUNNING)
    await ledger.count("stop", lambda: place.stop(ref))
    return ledger.asked


def _build_figure(name: str, asked: Asked) -> Figure:
    is_start = name.startswith("start")
    return Figure(
        name=f"requests.{name}",
        says=SAYS.get(name, f"requests of `{name}`, from its call to its answer, for a job of {RANKS} ranks"),
        value=len(asked.ours),
        unit="requests",
        aim=f"at most {MOST_OF_A_START}" if is_start else "",
        is_met=len(asked.ours) <= MOST_OF_A_START if is_start else None,
        context={"which": count_kinds(asked.ours), "controller_meanwhile": len(asked.controllers)},
    )


SAYS = {
    "start.first": "requests of the first `start` of a process, which remembers nothing of the cluster",
    "start": "requests of a `start` within a minute of another one to the same queue",
}


def count_kinds(requests: Iterable[Request]) -> dict[str, int]:
    """By verb and resource."""
    return dict(Counter(f"{request.verb} {request.resource or request.uri}" for request in requests))
