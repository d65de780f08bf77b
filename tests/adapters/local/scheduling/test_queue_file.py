# SPDX-License-Identifier: Apache-2.0
"""What ``queues.toml`` may say, and what is answered when it says something else."""

from __future__ import annotations

import tomllib

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.model import RANKS, Queue
from airflow_provider_dispatch.adapters.local.scheduling.queue_file import QueueFile, parse_queues
from airflow_provider_dispatch.exceptions import SpecError

MACHINE = {"cpu": 8000, "memory": 2**34, RANKS: 256}


def parse(text: str) -> QueueFile:
    return parse_queues(tomllib.loads(text), default_capacity=MACHINE)


def test_an_empty_file_changes_nothing() -> None:
    assert parse("") == QueueFile((), MACHINE, {"low": -100, "normal": 0, "high": 100}, 60.0)
    assert QueueFile((), MACHINE) == parse("")


def test_everything_that_can_be_said() -> None:
    text = """
        starvation_after_seconds = 90

        [node]
        capacity = {cpu = 4, gpu = 2}

        [priorities]
        urgent = 1000
        low = -5

        [queues.team-b]

        [queues.team-a]
        quota = {cpu = "2500m", memory = "4Gi", gpu = 1}
        weight = 3
        stopped = true

        [queues."a.1_x"]
        quota = {}
    """
    assert parse(text) == QueueFile(
        queues=(
            Queue("a.1_x", nominal={}),
            Queue("team-a", weight=3, nominal={"cpu": 2500, "memory": 2**32, "gpu": 1}, is_stopped=True),
            Queue("team-b"),
        ),
        capacity={"cpu": 4000, "memory": 2**34, RANKS: 256, "gpu": 2},
        priorities={"low": -5, "normal": 0, "high": 100, "urgent": 1000},
        starvation_after=90.0,
    )


@pytest.mark.parametrize(
    "text",
    [
        "queues.a.weight = 1000000",
        "priorities.p = 2147483647",
        "priorities.p = -2147483647",
        "starvation_after_seconds = 0",
        "starvation_after_seconds = 0.5",
        f"queues.{'x' * 253}.weight = 1",
        "queues.x.quota.cpu = 0",
        "queues.x.quota.cpu = 0.5",
    ],
)
def test_the_edges_of_what_is_allowed(text: str) -> None:
    assert isinstance(parse(text), QueueFile)


NAME = "must be letters, digits, '.', '-' and '_', up to 253, beginning and ending with a letter or digit"
AMOUNT = "must be a quantity such as 2, '500m' or '4Gi'"
QUANTITY = "must be a quantity that is not negative, such as 500m, 2 or 1Gi"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queue.a.weight = 1", "queue: is not known; use one of node, priorities, queues, starvation_after_seconds"),
        ("node.cores = 8", "node.cores: is not known; use one of capacity"),
        ("queues.a.quotas.cpu = 1", "queues.a.quotas: is not known; use one of quota, stopped, weight"),
        ("queues = 3", "queues = 3: must be a table, for instance [queues]"),
        ("queues.a = 'x'", "queues.a = 'x': must be a table, for instance [queues.a]"),
        ("queues.a.quota = '2'", "queues.a.quota = '2': must be a table, for instance [queues.a.quota]"),
        ("node = []", "node = []: must be a table, for instance [node]"),
        ("node.capacity = 4", "node.capacity = 4: must be a table, for instance [node.capacity]"),
        ("priorities = ['low']", "priorities = ['low']: must be a table, for instance [priorities]"),
        ("queues.a.parent = 'b'", "queues.a.parent = 'b': queues stand side by side here; take it out"),
        ("queues.a.borrowing.cpu = 1", "queues.a.borrowing = {'cpu': 1}: queues stand side by side here; take it out"),
        ("queues.a.lending.cpu = 1", "queues.a.lending = {'cpu': 1}: queues stand side by side here; take it out"),
        ("queues.a.weight = 0", "queues.a.weight = 0: must be a whole number from 1 to 1000000"),
        ("queues.a.weight = 1000001", "queues.a.weight = 1000001: must be a whole number from 1 to 1000000"),
        ("queues.a.weight = 1.5", "queues.a.weight = 1.5: must be a whole number from 1 to 1000000"),
        ("queues.a.weight = true", "queues.a.weight = True: must be a whole number from 1 to 1000000"),
        ("queues.a.stopped = 1", "queues.a.stopped = 1: must be true or false"),
        ("queues.a.quota.cpu = -1", f"queues.a.quota.cpu = -1: {QUANTITY}"),
        ("queues.a.quota.cpu = 'two'", f"queues.a.quota.cpu = 'two': {QUANTITY}"),
        ("queues.a.quota.cpu = true", f"queues.a.quota.cpu = True: {QUANTITY}"),
        ("node.capacity.gpu = []", f"node.capacity.gpu = []: {AMOUNT}"),
        ("queues.'a b'.weight = 1", f"queues = 'a b': {NAME}"),
        ("queues.''.weight = 1", f"queues = '': {NAME}"),
        ("queues.-a.weight = 1", f"queues = '-a': {NAME}"),
        ("queues.a-.weight = 1", f"queues = 'a-': {NAME}"),
        ("priorities.'é' = 1", f"priorities = 'é': {NAME}"),
        (
            "priorities.p = 2147483648",
            "priorities.p = 2147483648: must be a whole number from -2147483647 to 2147483647",
        ),
        (
            "priorities.p = -2147483648",
            "priorities.p = -2147483648: must be a whole number from -2147483647 to 2147483647",
        ),
        ("priorities.p = 'x'", "priorities.p = 'x': must be a whole number from -2147483647 to 2147483647"),
        ("starvation_after_seconds = -1", "starvation_after_seconds = -1: must be a number of seconds, 0 or more"),
        ("starvation_after_seconds = inf", "starvation_after_seconds = inf: must be a number of seconds, 0 or more"),
        ("starvation_after_seconds = nan", "starvation_after_seconds = nan: must be a number of seconds, 0 or more"),
        ("starvation_after_seconds = true", "starvation_after_seconds = True: must be a number of seconds, 0 or more"),
        ("starvation_after_seconds = '9'", "starvation_after_seconds = '9': must be a number of seconds, 0 or more"),
    ],
)
def test_what_can_not_be_right_is_refused_with_place_value_and_cure(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(SpecError, match="up to 253"):
        parse(f"queues.{'x' * 254}.weight = 1")
