"""Write the tables of docs/FAULTS.md from the runs of the matrix of faults that are checked in.

python -m tests.docs.faults
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.faults.matrix.report import REMOVED, SECOND_LINES, Run, runs_in, spread
from tests.faults.matrix.rows import ROWS
from tests.faults.matrix.scene import Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "FAULTS.md"
RUNS = ROOT / "benchmarks" / "figures" / "matrix.jsonl"
BEGIN, END = "<!-- 'make reference' writes these tables -->\n", "<!-- end of the tables -->\n"
TIERS = {1: "without Spark", 2: "with Spark"}

_COLUMNS = (
    "fault",
    "promised",
    "runs without Spark",
    "no ack",
    "no output",
    "whole",
    "runs with Spark",
    "no ack",
    "no output",
    "whole",
)


def written(page: str, found: list[Run]) -> str:
    """Return the page with the tables of these runs in place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n\n".join([before + BEGIN.rstrip(), *_tables(found), END + after])


def _tables(found: list[Run]) -> Iterator[str]:
    yield _table(("tier", "commit", "runs", "passed", "later than promised"), _totals(found))
    yield _table(("second line of defence", "times reached", "runs", "faults"), _reached(found))
    for module, rows in groupby(ROWS.values(), _module_of):
        yield f"### {_title(module)}"
        yield _table(_COLUMNS, (_cells(row, found) for row in rows))


def _totals(found: list[Run]) -> Iterator[tuple[str, ...]]:
    for tier, commit in sorted({(run.tier, run.commit) for run in found}):
        these = [run for run in found if (run.tier, run.commit) == (tier, commit)]
        passed = sum(not run.wrong for run in these)
        late = sum(run.acks > ROWS[run.row].acks for run in these)
        yield f"{tier}, {TIERS[tier]}", commit, str(len(these)), str(passed), str(late)


def _reached(found: list[Run]) -> Iterator[tuple[str, ...]]:
    for name in [*SECOND_LINES, REMOVED]:
        these = [run for run in found if run.reached.get(name)]
        times = sum(run.reached[name] for run in these)
        yield name, str(times), str(len(these)), str(len({run.row for run in these}))


def _cells(row: Row, found: list[Run]) -> Iterator[str]:
    operator = " (needs an operator)" if row.operator else ""
    yield row.name.replace("_", " ") + operator
    yield f"{row.acks:g}"
    for tier in TIERS:
        these = [run for run in found if run.row == row.name and run.tier == tier]
        yield str(len(these) or "")
        acks = spread(run.acks for run in these)
        yield f"**{acks}**" if any(run.acks > row.acks for run in these) else acks
        # No batch came to the sink after the fault, before the run ended.
        yield spread(run.output for run in these if run.output)
        yield spread(run.whole for run in these if run.whole is not None)


def _module_of(row: Row) -> str:
    fault = row.fault
    while isinstance(fault, partial):
        fault = fault.func
    return fault.__module__


def _title(module: str) -> str:
    lines = (sys.modules[module].__doc__ or "").splitlines()
    return lines[0].rstrip(".")


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), runs_in(RUNS)))
