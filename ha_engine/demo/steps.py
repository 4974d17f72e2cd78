"""Print a line when a step of the demo ends, and a table of all steps at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

WAITING_EVERY_SECONDS = 10.0
"""Interval of lines about the present wait, if the output is no terminal."""


@dataclass
class Step:
    """One step of the demo. ``what`` is the work of the step, and after its end the result."""

    name: str
    what: str
    began: float
    seconds: float = 0.0


class Steps:
    """Prints the steps to ``console``, and knows the present step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.doing: Step | None = None
        self._ended: list[Step] = []
        self._shown_at = 0.0

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[Step]:
        began = time.monotonic()
        self.doing, self._shown_at = Step(name, what, began), began
        try:
            yield self.doing
            self.doing.seconds = time.monotonic() - began
            self._ended.append(self.doing)
            self._print(self.doing)
        finally:
            self.doing = None

    def _print(self, step: Step) -> None:
        self.console.print(
            f"[bold]{step.name:<11}[/bold] {step.what} [cyan]{step.seconds:.1f} s[/cyan]",
            highlight=False,
            soft_wrap=True,
        )

    def line(self, waiting: str) -> str:
        """The present step, its duration so far, and ``waiting``, which says what it waits for."""
        if self.doing is None:
            return ""
        seconds = time.monotonic() - self.doing.began
        return f"{self.doing.what} ({seconds:.0f} s)" + (f"; {waiting}" if waiting else "")

    def say_waiting(self, waiting: str) -> None:
        now = time.monotonic()
        if not self.console.is_terminal and now - self._shown_at >= WAITING_EVERY_SECONDS:
            self._shown_at = now
            line = f"{'':<11} {self.line(waiting)}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def print_table(self) -> None:
        table = Table(title="steps")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        for step in self._ended:
            table.add_row(step.name, f"{step.seconds:.1f}")
        table.add_section()
        table.add_row("all", f"{sum(step.seconds for step in self._ended):.1f}")
        self.console.print(table)
