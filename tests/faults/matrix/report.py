"""The lines of the runs, and the table that summarizes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.faults.matrix.rows import ROWS

LINES = "runs.jsonl"


@dataclass(frozen=True)
class Run:
    """One run of a row; times in seconds. ``acks`` and ``output`` are the longest times without an
    ack and without a published batch, ``whole`` is the time until the pair was whole again, None if
    it never was."""

    row: str
    number: int
    seed: int
    tier: int
    wrong: tuple[str, ...]
    acks: float
    output: float
    whole: float | None
    seconds: float

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.row, self.number, self.seed, self.tier


def append(directory: Path, run: Run) -> None:
    with (directory / LINES).open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs(directory: Path) -> list[Run]:
    """Return the runs that ended in ``directory``."""
    return list(_lines(directory / LINES))


def _lines(path: Path) -> Iterator[Run]:
    if path.exists():
        for line in path.read_text().splitlines():
            tree = json.loads(line)
            yield Run(**{**tree, "wrong": tuple(tree["wrong"])})


def table(found: list[Run]) -> Table:
    title = "outages in seconds: median / longest"
    shown = Table(title=title)
    for name in ("row", "runs", "passed", "failed", "outage of acks", "promised", "later"):
        shown.add_column(name, justify="left" if name == "row" else "right")
    for name in ("outage of output", "whole again", "operator"):
        shown.add_column(name, justify="right")
    for row in ROWS.values():
        ended = [run for run in found if run.row == row.name]
        if ended:
            failed = sum(bool(run.wrong) for run in ended)
            late = sum(run.acks > row.acks for run in ended)
            shown.add_row(
                row.name,
                *map(str, (len(ended), len(ended) - failed, failed)),
                _spread([run.acks for run in ended]),
                f"{row.acks:.1f}",
                str(late),
                _spread([run.output for run in ended]),
                _spread([run.whole for run in ended if run.whole is not None]),
                "needed" if row.operator else "",
            )
    return shown


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} / {max(seconds):.2f}" if seconds else "never"
