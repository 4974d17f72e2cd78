"""A result as a picture: what has a target, with a bar that shows how far it is from it, as SVG."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.bar import Bar
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from benchmarks.report import Figure, Result, machine

WIDTH, BAR_WIDTH, BAR_END = 132, 30, 2.0
"""A full bar is twice the target; the middle is the target itself."""
_SHOWN = (
    "processor",
    "memory",
    "system",
    "java",
    "python",
    "pyspark",
    "commit",
    "load",
)

_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Which a browser would fetch from elsewhere."""


def draw(result: Result, directory: Path) -> Path:
    """The path of the picture, which lies beside the result's JSON."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Group(_table(result), Text(_words(), style="dim")))
    path = directory / f"{result.stem}.svg"
    picture = console.export_svg(title=f"ha-engine: {result.command}")
    path.write_text(_FONTS.sub("", picture), encoding="utf-8")
    return path


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", ratio=1)
    for name in ("median", "unit", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("half of the bar is the target", width=BAR_WIDTH)
    for figure in result.ordered():
        if figure.target:
            color = "green" if figure.met else "red"
            bar = Bar(BAR_END, 0, min(BAR_END, _of_target(figure)), width=BAR_WIDTH, color=color)
            table.add_row(figure.name, figure.short, figure.unit, figure.target, bar)
    return table


def _of_target(figure: Figure) -> float:
    target = float(figure.target.split()[-1])
    return figure.median / target if target else float(figure.median > 0) * BAR_END


def _words() -> str:
    found = machine()
    return "\n" + ", ".join(f"{name} {found[name]}" for name in _SHOWN if name in found)
