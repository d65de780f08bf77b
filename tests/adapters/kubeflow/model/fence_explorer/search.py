# SPDX-License-Identifier: Apache-2.0
"""Search every state within bounds, breadth first, and ask of the whole graph whether it can always go on."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.adapters.kubeflow.model.fence_explorer import cluster, users
from tests.adapters.kubeflow.model.fence_explorer.controllers import Controllers
from tests.adapters.kubeflow.model.fence_explorer.protocol import Protocol
from tests.adapters.kubeflow.model.fence_explorer.world import END, Bounds, Step, World, build_world, settle

CALM, CONTROLLER, RELEASE = "calm", "controller", "release"


@dataclass
class Finding:
    """What a search came to.

    :param violated: name of the broken invariant; empty when none is.
    :param trace: how to get there, one label a step.
    :param is_complete: every state within the bounds was looked at; a search ends at the first violation.
    """

    states: int = 0
    steps: int = 0
    violated: str = ""
    text: str = ""
    trace: list[str] = field(default_factory=list)
    is_complete: bool = True

    def __str__(self) -> str:
        story = "".join(f"\n  {number:3}. {label}" for number, label in enumerate(self.trace, 1))
        head = f"{self.states:,} states, {self.steps:,} steps, {'complete' if self.is_complete else 'NOT complete'}"
        return f"{head}: {self.violated or 'clean'} {self.text}{story}"


class Search:
    """One search. Labels are not kept: a trace is found by taking its steps again."""

    def __init__(self, bounds: Bounds, protocol: Protocol | None = None, *, overlooks: str = "") -> None:
        self.bounds = bounds
        self._overlooked = overlooks
        self._controllers = Controllers(protocol or Protocol())
        self._worlds: list[World] = [settle(build_world(bounds))]
        self._ids = {self._worlds[0]: 0}
        self._parents = array("i", [-1])
        self._edges: dict[str, tuple[array[int], array[int]]] = {
            kind: (array("i"), array("i")) for kind in (CALM, CONTROLLER, RELEASE)
        }
        self._cut: list[int] = []
        self.finding = Finding()

    def run(self, *, asks_liveness: bool = True) -> Finding:
        finding, current = self.finding, 0
        while current < len(self._worlds) and not finding.violated:
            self._expand(current)
            current += 1
            if len(self._worlds) > self.bounds.most_states:
                finding.is_complete = False
                break
        self._cut.extend(range(current, len(self._worlds)))
        finding.states = len(self._worlds)
        if asks_liveness and not finding.violated:
            self._ask_liveness()
        return finding

    def _expand(self, current: int) -> None:
        world = self._worlds[current]
        if world.trainjob.a > self.bounds.admissions:
            self._cut.append(current)
            return
        for step in self._successors(world):
            self.finding.steps += 1
            if step.violation and step.violation.name != self._overlooked:
                self.finding.violated, self.finding.text = step.violation
                self.finding.trace = [*self._trace(current), step.label]
                self.finding.is_complete = False
                return
            target = self._visit(settle(step.world), current)
            if step.kind in self._edges:
                sources, targets = self._edges[step.kind]
                sources.append(current)
                targets.append(target)

    def _successors(self, world: World) -> Iterator[Step]:
        if world == END:
            return
        yield from cluster.steps(world, self.bounds, self._controllers)
        yield from users.steps(world, self.bounds, self._controllers)
        yield from self._controllers.steps(world)

    def _visit(self, world: World, parent: int) -> int:
        number = self._ids.get(world)
        if number is None:
            number = self._ids[world] = len(self._worlds)
            self._worlds.append(world)
            self._parents.append(parent)
        return number

    def _trace(self, number: int) -> list[str]:
        labels = []
        while number > 0:
            parent = self._parents[number]
            labels.append(self._label(parent, number))
            number = parent
        return labels[::-1]

    def _label(self, parent: int, number: int) -> str:
        steps = self._successors(self._worlds[parent])
        return next(step.label for step in steps if settle(step.world) == self._worlds[number])

    def _ask_liveness(self) -> None:
        goals = [
            number
            for number, world in enumerate(self._worlds)
            if world.trainjob.finished or cluster.is_whole(world, self.bounds)
        ]
        reached = self._reach([*goals, *self._cut], (CALM, CONTROLLER, RELEASE))
        self._blame("live", (number for number in range(len(self._worlds)) if not reached[number]))
        held = [number for number, world in enumerate(self._worlds) if world.monitor.held or world.trainjob.finished]
        reached = self._reach([*held, *self._cut], (CALM, CONTROLLER))
        stuck = (number for number, world in enumerate(self._worlds) if world.trainjob.held and not reached[number])
        self._blame("hold-ends", stuck)

    def _blame(self, name: str, stuck: Iterable[int]) -> None:
        first = next(iter(stuck), None)
        if first is not None and not self.finding.violated:
            self.finding.violated, self.finding.text = name, "there is no way on from here"
            self.finding.trace = self._trace(first)

    def _reach(self, goals: Iterable[int], kinds: tuple[str, ...]) -> bytearray:
        """Which states lead to a goal by steps of these kinds."""
        count = len(self._worlds)
        starts = array("i", bytes(4 * (count + 1)))
        for kind in kinds:
            for target in self._edges[kind][1]:
                starts[target + 1] += 1
        for number in range(count):
            starts[number + 1] += starts[number]
        sources, place = array("i", bytes(4 * max(starts[count], 1))), array("i", starts)
        for kind in kinds:
            for source, target in zip(*self._edges[kind], strict=True):
                sources[place[target]] = source
                place[target] += 1
        reached = bytearray(count)
        waiting = deque(goals)
        while waiting:
            number = waiting.popleft()
            if not reached[number]:
                reached[number] = 1
                waiting.extend(sources[starts[number] : starts[number + 1]])
        return reached


def explore(
    bounds: Bounds, protocol: Protocol | None = None, *, asks_liveness: bool = True, overlooks: str = ""
) -> Finding:
    """Search the world within *bounds*.

    :param overlooks: name of an invariant whose violation doesn't end the search.
    """
    return Search(bounds, protocol, overlooks=overlooks).run(asks_liveness=asks_liveness)
