"""The demo as a user sees it: a year of flights through two nodes, of which one is lost."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from ha_engine.client.switchover import await_switchover
from ha_engine.demo.comparison import Outcome, compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import DemoNode, DemoPair
from ha_engine.demo.scoreboard import Scoreboard
from ha_engine.demo.traffic import Traffic, gap_across
from ha_engine.errors import EngineError
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from ha_engine.query.session import check_java

START_SECONDS_MAX = 300.0
TAKEOVER_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 300.0
QUIET_SECONDS = 1.5
"""So long nothing changes once the ticks are over too."""
FADE_SECONDS = 100.0
"""So much of what is left of the year is sent each second that there is traffic to the end."""
PEACE_SECONDS = 3.0
"""How long traffic flows undisturbed before each fault."""


def show(directory: Path, console: Console) -> bool:
    """Runs the whole demo below ``directory``, which is emptied first. True when all is equal."""
    check_java()
    year = departures()
    _empty(directory)
    console.print(f"one year of New York departures: {year.num_rows:,} flights")
    with EmbeddedPostgres(directory / "postgres") as server:
        upgrade(open_engine(server.url))
        pair = DemoPair(directory, server.url, "flights.yaml")
        traffic = Traffic(pair.urls, "departures", year, FADE_SECONDS)
        _Demo(pair, traffic, Scoreboard(pair), open_engine(server.url), console).play()
        outcomes = compare(server.url, year)
    _print(outcomes, console)
    return all(outcome.equal for outcome in outcomes)


def _empty(directory: Path) -> None:
    """Only a directory that a demo made is emptied."""
    mark = directory / ".ha-engine-demo"
    if directory.exists() and any(directory.iterdir()) and not mark.exists():
        raise EngineError(
            f"{directory} is not empty and no demo made it; choose another --directory"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    mark.touch()


_LAST_OUTPUTS = """
SELECT query, extract(epoch FROM published_at) FROM ha_engine_ledger WHERE batch > 0
"""


@dataclass
class _Demo:
    """The acts, in their order."""

    pair: DemoPair
    traffic: Traffic
    board: Scoreboard
    database: Engine
    console: Console

    def play(self) -> None:
        with self.pair.running(), self.board.shown(self.console):
            first = self._start()
            self.board.traffic = self.traffic
            self.traffic.start()
            try:
                second = self._switch_over(first)
                self._lose(second)
                self._bring_back(second)
                self._finish()
            finally:
                self.traffic.stop()

    def _start(self) -> DemoNode:
        with self._doing("starting two nodes: Spark takes its time") as seconds:
            self.pair.wait("the start of both nodes", self.pair.is_whole, START_SECONDS_MAX)
        active = self.pair.active()
        assert active is not None
        other = self.pair.other(active)
        self._say("start", f"{active.name} is active, {other.name} is in sync and warm", seconds())
        return active

    def _switch_over(self, active: DemoNode) -> DemoNode:
        heir = self.pair.other(active)
        self._peace()
        with self._measured("switchover", f"{active.name} hands over to {heir.name}"):
            await_switchover(active.url, heir.name, "the demo")
        return heir

    def _lose(self, active: DemoNode) -> None:
        heir = self.pair.other(active)
        self._peace()
        with self._measured(
            "kill -9", f"{active.name} loses all its processes, {heir.name} goes on"
        ):
            active.kill_everything()

    def _bring_back(self, node: DemoNode) -> None:
        node.start()
        with self._doing(
            f"{node.name} comes back: journal, then Spark, then the batches it missed"
        ):
            began = time.monotonic()
            self.pair.wait("to be in sync again", lambda: _is_passive(node), START_SECONDS_MAX)
            in_sync = time.monotonic() - began
            self.pair.wait("to be warm again", self.pair.is_whole, START_SECONDS_MAX)
        warm = time.monotonic() - began
        self._say("return", f"{node.name} is in sync after {in_sync:.1f} s, and warm", warm)

    def _finish(self) -> None:
        with self._doing("sending what is left of the year") as seconds:
            left = self.traffic.rows.num_rows - self.traffic.sent
            self.traffic.finish()
        rate = left / seconds()
        self._say("rest", f"{left:,} events acknowledged, {rate:,.0f} a second", seconds())
        with self._doing("waiting for the last batch") as seconds:
            self.pair.wait("the last batch", self._settled(), SETTLE_SECONDS_MAX)
        self._say("settle", "every batch is in PostgreSQL", seconds())

    # -- how it is measured and told ---------------------------------------------------------------

    def _peace(self) -> None:
        """Both queries publish for a while, and those of the passive keep up."""
        until = time.time() + PEACE_SECONDS

        def flows() -> bool:
            self.traffic.require_well()
            return self._all_since(until) and self.pair.is_whole()

        with self._doing("sending; both nodes run the same batches"):
            self.pair.wait("the first output", flows, START_SECONDS_MAX)

    @contextlib.contextmanager
    def _measured(self, name: str, what: str) -> Iterator[None]:
        """The body begins an outage: of acks as a producer sees it, of output as the sink does."""
        epoch, outputs, began = self._epoch(), self._outputs(), time.time()
        with self._doing(what):
            yield
            self._wait_for_acks(epoch, began)
            resumed = time.time()
            self.pair.wait("output", lambda: self._all_since(resumed), TAKEOVER_SECONDS_MAX)
        acks = gap_across(self.traffic.acks, began, epoch)
        now = self._outputs()
        output = max(now[query] - before for query, before in outputs.items())
        self._say(name, f"{what}; no ack for {acks:.2f} s, no output for", output)

    def _wait_for_acks(self, epoch: int, began: float) -> None:
        def acked() -> bool:
            return self.traffic.acked_since(began) and self._epoch() > epoch

        self.pair.wait("to take over", acked, TAKEOVER_SECONDS_MAX)

    def _epoch(self) -> int:
        """Of the newest ack."""
        return self.traffic.acks[-1][1] if self.traffic.acks else 0

    def _all_since(self, at: float) -> bool:
        """Whether every query has published a batch since ``at``."""
        outputs = self._outputs().values()
        return bool(outputs) and min(outputs) > at

    def _outputs(self) -> dict[str, float]:
        """When each query's newest batch was published, in seconds since 1970."""
        with self.database.connect() as connection:
            rows = connection.execute(text(_LAST_OUTPUTS)).all()
        return {query: float(at) for query, at in rows}

    def _settled(self) -> Callable[[], bool]:
        seen: list[tuple[float, Any]] = []

        def settled() -> bool:
            active = self.pair.active()
            status = active.status() if active else None
            queries = status["queries"] if status else {}
            for name, query in queries.items():
                if query["state"] == "failed":
                    raise EngineError(f"query {name} failed: {query['reason']}")
            now = {
                name: (q["mark"], q["published"], q["backlog_events"])
                for name, q in queries.items()
            }
            if not seen or seen[-1][1] != now:
                seen.append((time.monotonic(), now))
            done = all(
                left == 0 and {*published.values()} == {mark}
                for mark, published, left in now.values()
            )
            return bool(now) and done and time.monotonic() - seen[-1][0] > QUIET_SECONDS

        return settled

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[Callable[[], float]]:
        """Shows what goes on; the callable gives the seconds that it took."""
        began, self.board.doing = time.monotonic(), what
        took: list[float] = []
        try:
            yield lambda: took[0]
        finally:
            took.append(time.monotonic() - began)
            self.board.doing = ""

    def _say(self, act: str, what: str, seconds: float) -> None:
        self.console.print(
            f"[bold]{act:<11}[/bold] {what} [cyan]{seconds:.2f} s[/cyan]", highlight=False
        )


def _is_passive(node: DemoNode) -> bool:
    status = node.status()
    return status is not None and status["role"] == "passive"


def _print(outcomes: list[Outcome], console: Console) -> None:
    table = Table(title="sink against pandas")
    for name in ("query", "rows in PostgreSQL", "rows expected", "rows that differ", ""):
        table.add_column(name, justify="left" if name == "query" else "right")
    for outcome in outcomes:
        verdict = "[green]equal[/green]" if outcome.equal else "[bold red]different[/bold red]"
        counts = (outcome.found, outcome.expected, outcome.differing)
        table.add_row(outcome.query, *(f"{count:,}" for count in counts), verdict)
    console.print(table)
    if all(outcome.equal for outcome in outcomes):
        console.print("[bold green]equal[/bold green]: nothing lost, nothing twice")
    else:
        console.print("[bold red]different[/bold red]: the sink does not match the reference")
