"""``ha-engine app test``: run an application on events from files, and compare its output."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ha_engine.cli.formats import FormatOption, JsonOption, console_of_tables, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ha_engine.app_test.comparison import Difference, Near, Row
    from ha_engine.app_test.suite import CaseResult, SuiteResult

DIFFERENT_EXIT_CODE = 1
PROGRESS_AFTER_SECONDS = 3.0
SHOWN_MAX = 20
"""More rows of a query are only counted. JSON has all of them."""


def run_tests(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The test file, in YAML.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEST]...", help="Names of tests; the default is all."),
    ] = None,
    output: FormatOption = "pretty",
    as_json: JsonOption = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Write the actual rows into FILE, where they differ."),
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option(
            help="Print each step to standard error; the default on a terminal, after "
            f"{PROGRESS_AFTER_SECONDS:g} seconds.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the queries of an application on the events of FILE, and compare their rows.

    The command needs no node, database, broker or sink. The exit code is 0 if all rows are as
    expected, 1 if some differ or a query fails, and 2 if FILE or its application is wrong.

    Example: ha-engine app test conf/applications/tests/flights.yaml -f json
    """
    from ha_engine.app_test.suite import run_suite

    result = run_suite(file, names or (), _Progress(progress).say)
    show(result.to_json(), output, as_json, lambda: _print(result))
    if update:
        _update(result)
    if result.failed:
        raise typer.Exit(DIFFERENT_EXIT_CODE)


def _update(result: SuiteResult) -> None:
    from ha_engine.app_test.update import update_file

    replaced, kept = update_file(result)
    for line in kept:
        typer.echo(line, err=True)
    typer.echo(f"{result.file.path}: rows of {replaced} queries replaced", err=True)


class _Progress:
    """Prints steps to standard error: all of them, none, or if ``wanted`` is None those on a
    terminal after PROGRESS_AFTER_SECONDS."""

    def __init__(self, wanted: bool | None) -> None:
        self._wanted, self._began = wanted, time.monotonic()

    def say(self, line: str) -> None:
        is_long = time.monotonic() - self._began > PROGRESS_AFTER_SECONDS
        if self._wanted or (self._wanted is None and is_long and sys.stderr.isatty()):
            typer.echo(line, err=True)


# -- for people ------------------------------------------------------------------------------------


def _print(result: SuiteResult) -> None:
    console = console_of_tables()
    for case in result.results:
        _print_case(console, case)
    passed = len(result.results) - result.failed
    verdict = f"{passed} passed, {result.failed} failed" if result.failed else f"{passed} passed"
    console.print(f"{verdict} in {result.seconds:.1f} s", markup=False)


def _print_case(console: Console, case: CaseResult) -> None:
    from rich.text import Text

    style, word = ("green", "passed") if case.passed else ("red", "FAILED")
    console.print(Text.assemble((word, style), f"  {case.name}  ({case.seconds:.1f} s)"))
    for found in case.differences:
        if not found.is_none:
            _print_difference(console, found)
        for note in case.notes[found.expectation.query]:
            console.print(f"  note: {found.expectation.query}: {note}", markup=False)


def _print_difference(console: Console, found: Difference) -> None:
    place = found.expectation.place
    where = f"{place.file}:{place.line}"
    if found.error is not None:
        console.print(f"  {found.expectation.query} failed in {found.error}", markup=False)
        return
    counts = (
        (len(found.missing), "missing"),
        (len(found.unexpected), "unexpected"),
        (len(found.near), "different"),
    )
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    console.print(
        f"  {found.expectation.query}: {words or 'rows in another order'}  ({where})", markup=False
    )
    console.print(_table(found))
    hidden = max(0, sum(count for count, _ in counts) - SHOWN_MAX)
    if hidden:
        console.print(f"  and {hidden} more; -f json has all", markup=False)


def _table(found: Difference) -> Table:
    """The rows that differ: ``-`` is expected, ``+`` is there. Both are shown if they are near."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("", *found.columns, box=SIMPLE, pad_edge=False)
    near = [*found.near, *([] if found.reordered is None else [found.reordered])]
    left = SHOWN_MAX
    for pair in near[:left]:
        table.add_row("-", *_cells(pair.expected, found, pair, "red"))
        table.add_row("+", *_cells(pair.actual, found, pair, "green"), end_section=True)
    left -= len(near)
    for row in found.missing[: max(0, left)]:
        table.add_row("-", *_cells(row, found, None, "red"))
    left -= len(found.missing)
    for row in found.unexpected[: max(0, left)]:
        table.add_row("+", *_cells(row, found, None, "green"))
    return table


def _cells(row: Row, found: Difference, near: Near | None, style: str) -> list[Any]:
    """The values of a row, in colour where they differ."""
    from rich.text import Text

    from ha_engine.app_test.comparison import plain

    return [
        Text(_shown(plain(row[name])), style if near is None or name in near.columns else "")
        for name in found.columns
    ]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
