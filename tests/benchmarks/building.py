# SPDX-License-Identifier: Apache-2.0
"""What building the example DAGs costs, beside the same DAGs made of `EmptyOperator`s.

Both run the code of the example files without their imports of the provider; only what the imported names stand for
differs. So the DAGs, their arrows and tasks of other providers are the same in both.
"""

from __future__ import annotations

import ast
import importlib
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from airflow.providers.standard.operators.empty import EmptyOperator

from tests.benchmarks.figure import Figure

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"
OWN_PACKAGE = "airflow_provider_dispatch"
ROUNDS = 60
AT_ONCE = 2
AIM = 1.3


@dataclass(slots=True)
class Example:
    """A file's code, and what it imports from the provider."""

    name: str
    code: CodeType
    ours: dict[str, object]
    empty: dict[str, object]
    our_times: list[float] = field(default_factory=list)
    empty_times: list[float] = field(default_factory=list)

    def run(self, *, ours_first: bool) -> None:
        """Build the DAGs both ways."""
        ways = [(self.ours, self.our_times), (self.empty, self.empty_times)]
        for names, times in ways if ours_first else reversed(ways):
            times.append(_time(self.code, names))

    @property
    def ratio(self) -> float:
        """Of two runs that followed each other."""
        return statistics.median(ours / empty for ours, empty in zip(self.our_times, self.empty_times, strict=True))


def measure_building() -> list[Figure]:
    """Seconds of CPU for all example files together."""
    examples = run_examples(ROUNDS)
    ours = [sum(times) for times in zip(*(example.our_times for example in examples), strict=True)]
    empty = [sum(times) for times in zip(*(example.empty_times for example in examples), strict=True)]
    ratio = statistics.median(our / other for our, other in zip(ours, empty, strict=True))
    return [
        Figure(
            name="parse.build",
            says=f"CPU time for building the DAGs of {len(examples)} example files; median of {ROUNDS}",
            value=statistics.median(ours) * 1000,
            unit="ms",
            peer="the same DAGs of EmptyOperators",
            peer_value=statistics.median(empty) * 1000,
            aim=f"at most {AIM:g} x, by the median of {ROUNDS} pairs of runs that followed each other",
            is_met=ratio <= AIM,
            context={
                "median_of_ratios": round(ratio, 3),
                "by_file": {example.name: round(example.ratio, 3) for example in examples},
            },
        )
    ]


def run_examples(rounds: int) -> list[Example]:
    """Build the DAGs of all example files so many times each way."""
    examples = [read_example(path) for path in sorted(EXAMPLES.glob("*.py"))]
    for number in range(rounds):
        for example in examples:
            # Neither always goes first.
            example.run(ours_first=bool(number % 2))
    return examples


def read_example(path: Path) -> Example:
    """The file without its imports of the provider, and the names that they made."""
    tree = ast.parse(path.read_text())
    ours: dict[str, object] = {}
    kept: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(OWN_PACKAGE):
            module = importlib.import_module(statement.module or "")
            ours |= {name.asname or name.name: getattr(module, name.name) for name in statement.names}
        else:
            kept.append(statement)
    tree.body = kept
    empty = {name: build_empty if isinstance(value, type) else value for name, value in ours.items()}
    return Example(path.stem, compile(tree, str(path), "exec", dont_inherit=True), ours, empty)


def build_empty(*, task_id: str, **_: object) -> EmptyOperator:
    """Stands for any operator of ours."""
    return EmptyOperator(task_id=task_id)


def _time(code: CodeType, names: dict[str, object]) -> float:
    start = time.process_time()
    for _ in range(AT_ONCE):
        exec(code, {"__name__": "example", "__doc__": "An example.", **names})
    return (time.process_time() - start) / AT_ONCE
