# SPDX-License-Identifier: Apache-2.0
"""CI's last line says what ran, and an empty or missing suite doesn't pass for a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import closing_line

CASES = {
    "passed": '<testcase name="a"/>',
    "failed": '<testcase name="b"><failure>no</failure></testcase>',
    "error": '<testcase name="c"><error>no</error></testcase>',
    "skipped": '<testcase name="d"><skipped/></testcase>',
}


def write_suite(path: Path, *ends: str) -> Path:
    path.write_text(f"<testsuites><testsuite>{''.join(CASES[end] for end in ends)}</testsuite></testsuites>")
    return path


@pytest.mark.parametrize(
    ("first", "second", "line", "status"),
    [
        (["passed"], ["passed", "passed"], "3 passed, 0 failed", 0),
        (["passed"], ["passed", "failed"], "2 passed, 1 failed", 1),
        (["passed"], ["error"], "1 passed, 1 failed", 1),
        (["passed", "skipped"], ["passed"], "2 passed, 0 failed, 1 skipped", 0),
        (["passed"], ["skipped"], "1 passed, 0 failed, 1 skipped", 1),
        (["passed"], [], "1 passed, 0 failed", 1),
    ],
)
def test_the_line_sums_all_suites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: list[str], second: list[str], line: str, status: int
) -> None:
    suites = [write_suite(tmp_path / "one.xml", *first), write_suite(tmp_path / "two.xml", *second)]

    assert closing_line.main(suites) == status
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_suite_that_never_started_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suites = [write_suite(tmp_path / "one.xml", "passed"), tmp_path / "two.xml"]

    assert closing_line.main(suites) == 1
    assert capsys.readouterr().out.splitlines() == ["two: ran no test", "1 passed, 0 failed"]
