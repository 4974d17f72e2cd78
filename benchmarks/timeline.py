"""Where the latency of one acknowledged event goes: the steps of a node, in milliseconds from ack.

The node runs with the notes of ``benchmarks/taps`` in all its processes; one event a second.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

_BEFORE_SECONDS, _AFTER_SECONDS = 0.05, 0.06
_SHARE_MIN = 0.5

Sent = list[tuple[float, float]]
"""Ack and commit of each event, in seconds since 1970."""


@contextmanager
def taken(directory: Path) -> Iterator[None]:
    """Processes that are started inside keep notes below ``directory``."""
    directory.mkdir(parents=True)
    before = os.environ.get("PYTHONPATH", "")
    taps = str(Path(__file__).with_name("taps"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (taps, before)))
    os.environ["HA_BENCH_NOTES"] = str(directory)
    try:
        yield
    finally:
        del os.environ["HA_BENCH_NOTES"]
        os.environ["PYTHONPATH"] = before


def show_timeline(directory: Path, sent: Sent, console: Console) -> None:
    """Median offset of every step from the ack; ``>`` begins and ``<`` ends it."""
    offsets = _offsets(_notes(directory), sent)
    offsets["= committed in PostgreSQL"] = [(commit - ack) * 1e3 for ack, commit in sent]
    often = {k: v for k, v in offsets.items() if len(v) >= _SHARE_MIN * len(sent)}
    table = Table(title="milliseconds after the ack: median, lower and upper quartile")
    for name in ("step", "median", "25 %", "75 %"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for name, found in sorted(often.items(), key=lambda item: statistics.median(item[1])):
        low, middle, high = statistics.quantiles(found, n=4)
        table.add_row(name, f"{middle:.1f}", f"{low:.1f}", f"{high:.1f}")
    console.print(table)


def _offsets(notes: list[tuple[float, str]], sent: Sent) -> dict[str, list[float]]:
    """By step; the second time that a step is seen after one event is a step of its own."""
    found: dict[str, list[float]] = defaultdict(list)
    for ack, commit in sent:
        seen: dict[str, int] = defaultdict(int)
        for at, name in notes:
            if ack - _BEFORE_SECONDS <= at <= commit + _AFTER_SECONDS:
                seen[name] += 1
                number = f" #{seen[name]}" if seen[name] > 1 else ""
                found[name + number].append((at - ack) * 1e3)
    return found


def _notes(directory: Path) -> list[tuple[float, str]]:
    lines = [line for file in directory.iterdir() for line in file.read_text().splitlines()]
    split = (line.partition(" ") for line in lines)
    return sorted((float(at), name) for at, _, name in split)
