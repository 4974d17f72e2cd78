"""The lines of the runs, and the table that summarizes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.faults.matrix.rows import ROWS

LINES = "runs.jsonl"
SECOND_LINES = {
    "publisher fenced by the ledger": "by_epoch=",
    "ledger claimed again": "the node claims it again",
    "records truncated": "the journal was truncated after",
    "torn write truncated": "torn tail of the journal truncated",
    "journal refused": " is damaged at byte ",
    "journal not written": "the journal could not be ",
    "disk without an answer": "the disk does not answer",
    "outcome of a database call unknown": "the outcome of the call is unknown",
    "peer refused": "peer refused",
    "damaged snapshot passed over": "revision cannot be restored",
    "snapshot restored": "restored snapshot replaced journal",
    "query state restored": "lost query state restored",
}
"""By second line of defence: what the log of a node says when it was reached."""
REMOVED = "member removed from the lease row"


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
    reached: dict[str, int] = field(default_factory=dict)
    """How often a node's log told of each second line of defence, and how often the lease row lost
    a member."""
    commit: str = ""
    """The commit of the engine that ran."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.row, self.number, self.seed, self.tier


def append(directory: Path, run: Run) -> None:
    with (directory / LINES).open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs(directory: Path) -> list[Run]:
    """Return the runs that ended in ``directory``."""
    path = directory / LINES
    return runs_in(path) if path.exists() else []


def runs_in(path: Path) -> list[Run]:
    """Return the runs of a file that ``append`` has written."""
    trees = map(json.loads, path.read_text().splitlines())
    return [Run(**{**tree, "wrong": tuple(tree["wrong"])}) for tree in trees]


def reached(logs: Iterable[str]) -> Counter[str]:
    """Count how often the logs tell of each second line of defence."""
    text = "\n".join(logs)
    return Counter({name: text.count(said) for name, said in SECOND_LINES.items()})


def coverage(found: list[Run]) -> Table:
    """Return how often the runs reached each second line of defence, and in how many rows."""
    shown = Table(title="second lines of defence")
    shown.add_column("reached")
    for name in ("times", "runs", "rows"):
        shown.add_column(name, justify="right")
    for name in [*SECOND_LINES, REMOVED]:
        runs_of = [run for run in found if run.reached.get(name)]
        times = sum(run.reached[name] for run in runs_of)
        rows = len({run.row for run in runs_of})
        shown.add_row(name, *map(str, (times, len(runs_of), rows)))
    return shown


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
                spread(run.acks for run in ended),
                f"{row.acks:.1f}",
                str(late),
                spread(run.output for run in ended),
                spread(run.whole for run in ended if run.whole is not None),
                "needed" if row.operator else "",
            )
    return shown


def spread(seconds: Iterable[float]) -> str:
    """Return the median and, of more than one, the longest."""
    values = sorted(seconds)
    if len(values) < 2:
        return "".join(f"{one:.2f}" for one in values)
    return f"{median(values):.2f}, {values[-1]:.2f}"
