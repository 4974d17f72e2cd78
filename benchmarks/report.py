"""Figures with their spread, the machine they were measured on, a table, and a file of JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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
    began: float = field(default_factory=time.time)

    def add(self, name: str, unit: str, samples: Sequence[float], **target: Any) -> None:
        self.figures.append(Figure(name, unit, list(samples), **target))

    def at_least(self, name: str, samples: Sequence[float], least: float, unit: str = "") -> None:
        met = statistics.median(samples) >= least
        self.add(name, unit, samples, target=f">= {least:g}", met=met)

    def at_most(self, name: str, samples: Sequence[float], most: float, unit: str = "") -> None:
        met = statistics.median(samples) <= most
        self.add(name, unit, samples, target=f"<= {most:g}", met=met)

    def show(self, console: Console) -> None:
        """Ratios and what has a target first."""
        table = Table(title=f"{self.command}: median (lowest to highest, samples)")
        for name in ("figure", "unit", "measured", "target", ""):
            table.add_column(name, justify="right" if name == "measured" else "left")
        for figure in sorted(self.figures, key=lambda one: not one.target):
            verdict = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}
            row = (figure.name, figure.unit, figure.shown, figure.target, verdict[figure.met])
            table.add_row(*row)
        console.print(table)
        for line in (*self.notes, *(f"{key}: {value}" for key, value in machine().items())):
            console.print(line, highlight=False)

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.began))
        path = RESULTS / f"{self.command.replace(' ', '-')}-{stamp}.json"
        figures = [asdict(figure) | {"median": figure.median} for figure in self.figures]
        content = {
            "command": self.command,
            "began": stamp,
            "seconds": round(time.time() - self.began, 1),
            "machine": machine(),
            "figures": figures,
            "notes": self.notes,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def machine() -> dict[str, str]:
    """What the figures depend on, without the name of the host."""
    return {
        "processor": f"{_model()}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "ha-engine")},
        "load": ", ".join(f"{one:.2f}" for one in os.getloadavg()),
    }


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
