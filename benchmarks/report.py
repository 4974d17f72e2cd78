"""Figures with their spread, the machine they were measured on, a table, and a file of JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of one quantity; ``target`` is what it shall reach, for people."""

    name: str
    unit: str
    samples: list[float]
    target: str = ""
    met: bool | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def short(self) -> str:
        return _number(self.median)

    @property
    def shown(self) -> str:
        low, high = min(self.samples), max(self.samples)
        spread = f"  ({_number(low)} to {_number(high)}, {len(self.samples)})"
        return _number(self.median) + (spread if len(self.samples) > 1 else "")


@dataclass
class Result:
    """What one command found."""

    command: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    series: dict[str, list[list[float]]] = field(default_factory=dict)
    """Pairs of x and y: the percentiles of a distribution, or values over time."""
    began: float = field(default_factory=time.time)

    def add(self, name: str, unit: str, samples: Sequence[float], **target: Any) -> None:
        self.figures.append(Figure(name, unit, [float(one) for one in samples], **target))

    def extend(self, name: str, unit: str, sample: float) -> None:
        """One more sample of a figure that may be new."""
        if not self.has(name):
            self.add(name, unit, [])
        self.samples(name).append(sample)

    def has(self, name: str) -> bool:
        return any(figure.name == name for figure in self.figures)

    def samples(self, name: str) -> list[float]:
        return next(figure.samples for figure in self.figures if figure.name == name)

    def aim(self, name: str, most: float) -> None:
        """The target of a figure that has all its samples."""
        (old,) = (figure for figure in self.figures if figure.name == name)
        new = replace(old, target=f"<= {most:g}", met=old.median <= most)
        self.figures[self.figures.index(old)] = new

    def at_least(self, name: str, samples: Sequence[float], least: float, unit: str = "") -> None:
        met = bool(statistics.median(samples) >= least)
        self.add(name, unit, samples, target=f">= {least:g}", met=met)

    def at_most(self, name: str, samples: Sequence[float], most: float, unit: str = "") -> None:
        met = bool(statistics.median(samples) <= most)
        self.add(name, unit, samples, target=f"<= {most:g}", met=met)

    def show(self, console: Console) -> None:
        """Ratios and what has a target first."""
        table = Table(title=f"{self.command}: median (lowest to highest, samples)")
        for name in ("figure", "unit", "measured", "target", ""):
            table.add_column(name, justify="right" if name == "measured" else "left")
        for figure in self.ordered():
            verdict = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}
            row = (figure.name, figure.unit, figure.shown, figure.target, verdict[figure.met])
            table.add_row(*row)
        console.print(table)
        for line in (
            *self.notes,
            *self.failures,
            *(f"{key}: {value}" for key, value in machine().items()),
        ):
            console.print(line, highlight=False, markup=False)

    def ordered(self) -> list[Figure]:
        """Ratios first, then what else has a target."""
        return sorted(self.figures, key=lambda one: (one.unit != "ratio", not one.target))

    def take(self, other: Result) -> None:
        """All of another command's, under its name."""
        name = other.command.split()[0]
        self.figures += [replace(one, name=f"{name}: {one.name}") for one in other.figures]
        self.notes += [f"{name}: {note}" for note in other.notes]
        self.series |= {f"{name}: {key}": pairs for key, pairs in other.series.items()}

    @property
    def stem(self) -> str:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.began))
        return f"{self.command.replace(' ', '-')}-{stamp}"

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.stem}.json"
        figures = [asdict(figure) | {"median": figure.median} for figure in self.figures]
        content = {
            "command": self.command,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "seconds": round(time.time() - self.began, 1),
            "machine": machine(),
            "figures": figures,
            "notes": self.notes,
            "failures": self.failures,
            "series": self.series,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def machine() -> dict[str, str]:
    """What the figures depend on, without the name of the host."""
    return {
        "commit": checked_out(),
        "processor": f"{_model()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "ha-engine")},
        "load": ", ".join(f"{one:.2f}" for one in os.getloadavg()),
    }


def checked_out() -> str:
    """The commit of the engine, with a + if its files were changed since; or ``unknown``."""
    words = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    told = subprocess.run(words, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def _model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _java() -> str:
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return told.stderr.splitlines()[0] if told.stderr else "unknown"


def _version(distribution: str) -> str:
    from importlib.metadata import version

    return version(distribution)


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
