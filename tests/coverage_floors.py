# SPDX-License-Identifier: Apache-2.0
"""Join the coverage of all processes of a test run and hold it against the floors: ``make test`` calls it last.

The pure code has every branch tested; everything together at least the floor that pyproject.toml names.
"""

from __future__ import annotations

import sys

import coverage

PURE = [
    "airflow_provider_dispatch/core/*",
    "airflow_provider_dispatch/adapters/*/lifecycle/*",
    "airflow_provider_dispatch/adapters/*/model/*",
    "airflow_provider_dispatch/adapters/*/scheduling/*",
]
PURE_FLOOR = 100.0


def is_above(measured: coverage.Coverage, *, floor: float, what: str, include: list[str] | None = None) -> bool:
    """Print the lines that no test reaches and whether what was measured is enough."""
    percent = measured.report(include=include, file=sys.stdout)
    # Rounding up must not hide the last missed branch.
    enough = percent >= floor
    print(f"{'ok' if enough else 'TOO LOW'}: {what}: {percent:.2f} % of lines and branches, at least {floor:g} %\n")
    return enough


def main() -> int:
    """Return the exit status."""
    measured = coverage.Coverage()
    measured.combine()
    measured.save()
    overall = measured.get_option("report:fail_under")
    assert isinstance(overall, int | float)
    results = [
        is_above(measured, floor=overall, what="the whole package"),
        is_above(measured, floor=PURE_FLOOR, what="the pure code", include=PURE),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
