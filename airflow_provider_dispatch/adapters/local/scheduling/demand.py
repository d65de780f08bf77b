# SPDX-License-Identifier: Apache-2.0
"""What a job asks for, worked out once for all the jobs of a pass that ask for the same.

Thousands of waiting jobs have few different shapes, so everything that admission learns about one demand (it can never
fit, it doesn't fit now, why) holds for all jobs that share it. Used by every module here; keeps nothing between passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.local.scheduling.model import Placement, Resources, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """The shapes of a job and their sum. Two are equal only if they are the same object: see :class:`DemandBook`."""

    shapes: tuple[Shape, ...]
    total: Resources


class DemandBook:
    """Gives equal shapes the same :class:`Demand`."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Demand] = {}

    def find(self, shapes: tuple[Shape, ...]) -> Demand:
        """The one demand for these shapes."""
        # The shapes themselves can't be keys, they hold mappings.
        value = tuple(map(_build_value, shapes))
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = Demand(shapes, sum_shapes(shapes))
        return known


def sum_shapes(shapes: Iterable[Shape]) -> dict[str, int]:
    """What all ranks of the shapes use together."""
    total: dict[str, int] = {}
    for shape in shapes:
        shift(total, shape.request, shape.count)
    return total


def sum_placement(placement: Placement) -> dict[str, int]:
    """What a placement uses over all nodes."""
    total: dict[str, int] = {}
    for _, amounts in placement:
        shift(total, amounts, 1)
    return total


def shift(tally: dict[str, int], amounts: Resources, times: int) -> None:
    """Add *amounts* so many times to *tally*, in place."""
    for resource, amount in amounts.items():
        tally[resource] = tally.get(resource, 0) + amount * times


def _build_value(shape: Shape) -> Hashable:
    # Equal mappings in another order count as different: that costs one more look and changes no decision.
    request = tuple(shape.request.items())
    if shape.required or shape.preferred:
        return shape.count, shape.priority, request, tuple(shape.required.items()), tuple(shape.preferred.items())
    return shape.count, shape.priority, request
