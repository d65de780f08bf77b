# SPDX-License-Identifier: Apache-2.0
"""Sum up the JUnit files of all suites in CI's last line: "N passed, N failed", skipped tests where there are any.

CI calls it with one file per suite. A suite without a file couldn't start; one without a test proves nothing: both
make the exit status 1, like a failure.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET


def count_results(path: Path) -> Counter[str]:
    """Tests by how they ended: passed, failed (an error is a failure), skipped; empty where there is no such file."""
    if not path.exists():
        return Counter()
    return Counter(_result_of(case) for case in ET.parse(path).iter("testcase"))


def _result_of(case: ET.Element) -> str:
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"


def build_closing_line(results: Counter[str]) -> str:
    """The line that stands alone at the end."""
    skipped = f", {results['skipped']} skipped" if results["skipped"] else ""
    return f"{results['passed']} passed, {results['failed']} failed{skipped}"


def main(paths: Iterable[Path]) -> int:
    """Print the line and return the exit status."""
    suites = {path: count_results(path) for path in paths}
    idle = [path for path, results in suites.items() if not results["passed"] + results["failed"]]
    for path in idle:
        print(f"{path.stem}: ran no test")
    total = sum(suites.values(), Counter[str]())
    print(build_closing_line(total))
    return 1 if idle or total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(map(Path, sys.argv[1:])))
