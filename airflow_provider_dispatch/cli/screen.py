# SPDX-License-Identifier: Apache-2.0
"""What people and programs see: answers on standard output in the form asked for, everything else on standard error.

The session writes through it. Colours, wrapped lines and progress appear only on a terminal. Text of others is cleaned,
so that nobody's message can move a cursor or forge a line. It knows nothing of jobs: :mod:`.views` makes what it shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_provider_dispatch.core.output import clean_text

WIDEST = 100_000
STYLES = {
    "succeeded": "green",
    "running": "green",
    "yes": "green",
    "failed": "red",
    "no": "red",
    "gone": "dim",
    "held": "yellow",
    "holding": "yellow",
    "stopping": "yellow",
    "unknown": "magenta",
}


class OutputForm(StrEnum):
    """How answers are written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class View:
    """One answer in all its forms.

    :param plain: JSON data; its keys are promised to programs.
    :param columns: headings; empty for a list of names and values.
    :param rows: cells as text.
    :param notes: lines below the table, one each.
    """

    plain: object
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def _is_person_watching() -> bool:
    return sys.stderr.isatty()


@dataclass(slots=True)
class Screen:
    """Standard output and standard error of one call."""

    form: OutputForm = OutputForm.TABLE
    is_progress_shown: bool = field(default_factory=_is_person_watching)

    @property
    def is_for_people(self) -> bool:
        """Answers are tables and lines rather than data."""
        return self.form is OutputForm.TABLE

    def show(self, view: View) -> None:
        """Write the answer of a verb that gives one."""
        match self.form:
            case OutputForm.JSON:
                self._write(json.dumps(view.plain, indent=2, ensure_ascii=False))
            case OutputForm.YAML:
                self._write(yaml.safe_dump(view.plain, sort_keys=False, allow_unicode=True).rstrip("\n"))
            case OutputForm.TABLE:
                self._show_table(view)

    def show_next(self, plain: object, line: str) -> None:
        """Write one of many answers at once: a line of JSON, a document of YAML, or a line for people."""
        match self.form:
            case OutputForm.JSON:
                self._write(json.dumps(plain, ensure_ascii=False))
            case OutputForm.YAML:
                self._write("---\n" + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip("\n"))
            case OutputForm.TABLE:
                self._write(line)

    def tell(self, line: str) -> None:
        """Say something that is no answer, such as why there is none."""
        first, *more = map(clean_text, line.splitlines() or [""])
        # What follows the first line is set in, so that nobody's text looks like a line of ours.
        sys.stderr.write("\n".join([first, *(f"  {each.removeprefix('  ')}" for each in more)]) + "\n")
        sys.stderr.flush()

    def tell_progress(self, line: str) -> None:
        """Say how far it has come, to a person who waits."""
        if self.is_progress_shown:
            self.tell(line)

    def working(self, what: str) -> AbstractContextManager[object]:
        """Show that something takes its time, to a person who waits."""
        if not self.is_progress_shown:
            return nullcontext()
        return Console(file=sys.stderr).status(Text(what))

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _show_table(self, view: View) -> None:
        notes = [Text(clean_text(note)) for note in view.notes]
        if sys.stdout.isatty():
            table = [_build_table(view.columns, view.rows, is_wide=False)] if view.rows else []
            Console(file=sys.stdout, highlight=False).print(*table, *notes, sep="\n")
            return
        # A pipe gets each row in one line of its own, without the blanks that fill the last column.
        page = Console(file=StringIO(), highlight=False, width=WIDEST, color_system=None)
        if view.rows:
            with page.capture() as captured:
                page.print(_build_table(view.columns, view.rows, is_wide=True))
            self._write("\n".join(line.rstrip() for line in captured.get().splitlines()))
        for note in notes:
            self._write(note.plain)


def _build_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, is_wide: bool) -> Table:
    """Aligned columns without lines, which ``cut`` and ``awk`` understand as well."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns), header_style="bold")
    rows = [[clean_text(cell) for cell in row] for row in rows]
    for index in range(max(len(row) for row in rows)):
        heading = columns[index] if columns else ""
        table.add_column(heading, overflow="fold", no_wrap=is_wide, style="" if columns or index else "bold")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table
