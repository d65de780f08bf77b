# SPDX-License-Identifier: Apache-2.0
"""Break the deciding code in many places, one at a time, and see that its tests notice: ``make mutants`` runs it.

A place is chosen at random (the same ones for the same seed), then one of cosmic-ray's operators that fit there. Each
mutant is tried in a copy of the project, with the tests whose folder mirrors the code's. Prints the survivors as diffs
and fails when too few were noticed. Never touches the checkout.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "airflow_provider_dispatch"
TARGETS = (
    "core/decision.py",
    "core/identity.py",
    "core/observation.py",
    "core/recovery.py",
    "core/state.py",
    "adapters/local/scheduling/**/*.py",
)
COPIED = (PACKAGE, "tests", "pyproject.toml")
FLOOR = 0.85
# Identity and equality are one for enum members and None, and the code compares nothing else by identity.
SAME_FOR_ENUMS = ("_Is_Eq", "_IsNot_NotEq")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: which occurrence of which operator in which file, whose text of that moment is kept."""

    path: Path
    code: str
    operator: str
    occurrence: int
    place: tuple[int, int]

    def build_code(self) -> str:
        """The changed file."""
        code = mutate_code(self.code, plugins.get_operator(self.operator)(), self.occurrence)
        assert code is not None, self
        return code

    def build_diff(self) -> str:
        """What the change is, for people."""
        before, after = self.code.splitlines(), self.build_code().splitlines()
        return "\n".join(difflib.unified_diff(before, after, str(self.path), lineterm="", n=1))


def find_inert_spans(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where no change shows in a run: annotations aren't evaluated, a class's decorators forbid but decide nothing."""
    inert: list[ast.expr] = []
    for node in ast.walk(ast.parse(code)):
        inert += [node for node in (getattr(node, "annotation", None), getattr(node, "returns", None)) if node]
        inert += node.decorator_list if isinstance(node, ast.ClassDef) else []
    return [((node.lineno, node.col_offset - 1), (node.end_lineno or 0, node.end_col_offset or 0)) for node in inert]


def list_mutants(path: Path) -> Iterator[Mutant]:
    """All changes that cosmic-ray knows for a file and that can matter."""
    code = (ROOT / path).read_text()
    tree, inert = get_ast(code), find_inert_spans(code)
    for name in plugins.operator_names():
        operator_class = plugins.get_operator(name)
        if operator_class.arguments() or name.endswith(SAME_FOR_ENUMS):
            continue
        operator = operator_class()
        places = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not any(start <= place < end for start, end in inert):
                yield Mutant(path, code, name, occurrence, place)


def choose_mutants(count: int, seed: int, patterns: Sequence[str]) -> list[Mutant]:
    """So many places, one mutant each: choosing among mutants would favour places where many operators fit."""
    by_place = defaultdict(list)
    for pattern in patterns:
        for path in sorted((ROOT / PACKAGE).glob(pattern)):
            for mutant in list_mutants(path.relative_to(ROOT)):
                by_place[mutant.path, mutant.place].append(mutant)
    chance = random.Random(seed)
    places = chance.sample(sorted(by_place), min(count, len(by_place)))
    return [chance.choice(by_place[place]) for place in places]


def find_tests(path: Path) -> str:
    """The folder of tests that mirrors the file's folder, or the nearest one above it that exists."""
    mirrored = Path("tests", *path.parent.parts[1:])
    return str(next(folder for folder in (mirrored, *mirrored.parents) if (ROOT / folder).is_dir()))


def run_tests(copy: Path, tests: str, timeout_seconds: float) -> str | None:
    """Run the tests in that copy.

    :returns: None when they pass, else the end of what they printed; a run that hangs doesn't pass.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests]
    # Byte code is told from its source by second and size, which two mutants may share.
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_seconds:.0f} s"
    return None if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-20:])


def is_noticed(mutant: Mutant, copies: queue.Queue[Path], timeouts: dict[str, float]) -> bool:
    """Try one mutant in a copy that nobody uses: first the tests named after its file, which mostly notice at once."""
    copy, folder = copies.get(), find_tests(mutant.path)
    nearest = f"{folder}/test_{mutant.path.name}"
    changed, unchanged = copy / mutant.path, (copy / mutant.path).read_text()
    try:
        changed.write_text(mutant.build_code())
        tries = [nearest, folder] if (copy / nearest).exists() else [folder]
        return any(run_tests(copy, tests, timeouts[folder]) is not None for tests in tries)
    finally:
        changed.write_text(unchanged)
        copies.put(copy)


def make_copy(folder: Path) -> Path:
    """What the tests need of the project."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    return folder


def measure_timeouts(copy: Path, folders: set[str]) -> dict[str, float]:
    """Five times what each folder's tests need unchanged; they must pass."""
    timeouts = {}
    for folder in sorted(folders):
        begun = time.monotonic()
        if failure := run_tests(copy, folder, timeout_seconds=600):
            sys.exit(f"{failure}\n{folder}: the tests fail on the code as it is")
        timeouts[folder] = 10 + 5 * (time.monotonic() - begun)
    return timeouts


def report(mutants: list[Mutant], results: Iterable[bool]) -> int:
    """Print the survivors as they are found, and the share that was noticed; return the exit status."""
    noticed = 0
    for mutant, was_noticed in zip(mutants, results, strict=True):
        noticed += was_noticed
        if not was_noticed:
            where = f"{mutant.path}:{mutant.place[0]}"
            print(f"\nsurvived: {mutant.operator} at {where}\n{mutant.build_diff()}", flush=True)
    share = noticed / len(mutants)
    print(f"\n{noticed} of {len(mutants)} mutants noticed: {share:.1%}, at least {FLOOR:.0%} wanted")
    return 0 if share >= FLOOR else 1


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="patterns of files in the package to change")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mutants = choose_mutants(options.count, options.seed, options.targets)
    if not mutants:
        sys.exit("nothing to change: no target exists")
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")) for _ in range(options.jobs)]
        copies: queue.Queue[Path] = queue.Queue()
        for folder in folders:
            copies.put(make_copy(Path(folder)))
        timeouts = measure_timeouts(Path(folders[0]), {find_tests(mutant.path) for mutant in mutants})
        with ThreadPoolExecutor(options.jobs) as pool:
            return report(mutants, pool.map(lambda mutant: is_noticed(mutant, copies, timeouts), mutants))


if __name__ == "__main__":
    sys.exit(main())
