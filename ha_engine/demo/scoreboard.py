"""Show the newest status of both nodes, and the traffic, while the demo runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ha_engine.demo.movement import Status
from ha_engine.demo.steps import Steps
from ha_engine.demo.watch import Watch

RATE_OVER_SECONDS = 2.0
DRAWN_PER_SECOND = 2


class Scoreboard:
    """Draws the newest status that the watch has of each node, and sends no request itself."""

    def __init__(self, watch: Watch, steps: Steps) -> None:
        self._watch, self._steps = watch, steps
        self._sent: list[tuple[float, int]] = []

    @contextlib.contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Show the scoreboard during the block, if the output is a terminal."""
        if not console.is_terminal:
            yield
            return
        with Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=DRAWN_PER_SECOND,
            transient=True,
        ):
            yield

    def _draw(self) -> RenderableType:
        table = Table()
        for title in ("node", "role", "epoch", "protected", "warm", "journal", "published"):
            table.add_column(title, justify="left" if title in ("node", "role") else "right")
        for name, status in self._watch.latest.items():
            table.add_row(name, *(_row(status) if status else ["[red]no answer[/red]"]))
        doing = self._steps.line(self._watch.waiting)
        return Group(table, Text(self._rate()), Text(doing, style="bold"))

    def _rate(self) -> str:
        if not self._watch.traffic.sent:
            return ""
        now = time.monotonic()
        self._sent = [(at, sent) for at, sent in self._sent if at > now - RATE_OVER_SECONDS]
        self._sent.append((now, self._watch.traffic.sent))
        (began, first), (ended, last) = self._sent[0], self._sent[-1]
        rate = (last - first) / (ended - began) if ended > began else 0.0
        return f"{last:,} events acked, {rate:,.0f} per second"


def _row(status: Status) -> list[str]:
    published = [
        min(query["published"].values(), default=0) for query in status["queries"].values()
    ]
    role = f"[green]{status['role']}[/green]" if status["role"] == "active" else status["role"]
    return [
        role,
        str(status["lease"]["epoch"] or ""),
        "yes" if status["protected"] else "no",
        "yes" if status["warm"] else "no",
        status["journal"]["last"],
        str(min(published, default=0)),
    ]
