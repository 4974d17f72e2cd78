"""Play the demo: a year of flights goes through two nodes, and one node is lost meanwhile."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from ha_engine.client.admin import begin_switchover
from ha_engine.demo.flights import departures
from ha_engine.demo.host import free_resources
from ha_engine.demo.interrupts import Interrupts
from ha_engine.demo.nodes import DemoNode, DemoPair
from ha_engine.demo.processes import kill_all_in
from ha_engine.demo.scoreboard import Scoreboard
from ha_engine.demo.steps import Step, Steps
from ha_engine.demo.traffic import Traffic, gap_across
from ha_engine.demo.watch import Watch
from ha_engine.errors import EngineError
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from ha_engine.query.session import check_java

if TYPE_CHECKING:
    from ha_engine.demo.comparison import Outcome

FADE_SECONDS = 100.0
"""Each second the traffic sends the number of remaining flights divided by this number."""
PEACE_SECONDS = 3.0
"""How long traffic flows undisturbed before each fault."""


def show(directory: Path, console: Console) -> bool:
    """Empty ``directory``, and run the whole demo in it.

    Returns True if the sink's tables equal the expected results. Raises DemoInterrupted after a
    signal, DemoStuck when the demo makes no progress.
    """
    check_java()
    interrupts = Interrupts()
    with interrupts.noted(), _alone_in(directory):
        return _show(directory, Steps(console), interrupts)


def _show(directory: Path, steps: Steps, interrupts: Interrupts) -> bool:
    console = steps.console
    if warning := free_resources().warning:
        console.print(warning, highlight=False)
    with steps.step("flights", "reading the flights") as step:
        year = departures()
        step.what = f"one year of New York departures: {year.num_rows:,}"
    interrupts.require_none()
    with _database(directory / "postgres", steps) as url:
        interrupts.require_none()
        pair = DemoPair(directory, url, "flights.yaml", interrupts)
        traffic = Traffic(pair.urls, "departures", year, FADE_SECONDS)
        watch = Watch(pair, directory, traffic, interrupts)
        watch.on_look = lambda: steps.say_waiting(watch.waiting)
        with Scoreboard(watch, steps).shown(console):
            _Demo(watch, steps, open_engine(url)).play()
        with steps.step("compare", "comparing the sink with pandas") as step:
            outcomes = _compare(url, year)
            step.what = (
                f"{sum(one.found for one in outcomes):,} rows of the sink and as many of pandas"
            )
    steps.print_table()
    _print(outcomes, console)
    return all(outcome.equal for outcome in outcomes)


@contextmanager
def _database(directory: Path, steps: Steps) -> Iterator[str]:
    server = EmbeddedPostgres(directory)
    try:
        with steps.step("database", "starting an embedded PostgreSQL"):
            url = server.start()
            upgrade(open_engine(url))
        yield url
    finally:
        server.stop()


def _compare(url: str, year: pa.Table) -> list[Outcome]:
    # Import the comparison only here, because its import of pandas takes time.
    from ha_engine.demo.comparison import compare

    return compare(url, year)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Empty the directory for a ``with`` block, and kill every process in it at the end.

    Raises EngineError unless a demo made the directory and no other demo uses it now.
    """
    mark = directory / ".ha-engine-demo"
    if directory.exists() and any(directory.iterdir()) and not mark.exists():
        raise EngineError(
            f"{directory} is not empty and not from a demo; choose another --directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as lock:
        _lock(lock, directory)
        try:
            # An earlier demo that was killed with kill -9 may have left processes.
            kill_all_in(directory)
            for entry in set(directory.iterdir()) - {mark}:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield
        finally:
            kill_all_in(directory)


def _lock(lock: IO[str], directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EngineError(
            f"another demo uses {directory}; stop it, or choose another --directory"
        ) from error


_LAST_OUTPUTS = """
SELECT query, extract(epoch FROM published_at) FROM ha_engine_ledger WHERE batch > 0
"""


@dataclass
class _Demo:
    """The acts of the demo, such as the switchover and the loss of a node, in order."""

    watch: Watch
    steps: Steps
    database: Engine

    @property
    def pair(self) -> DemoPair:
        return self.watch.pair

    @property
    def traffic(self) -> Traffic:
        return self.watch.traffic

    def play(self) -> None:
        with self.pair.running():
            self._start()
            self.traffic.start()
            try:
                self._switch_over()
                self._bring_back(self._lose())
                self._finish()
            finally:
                self.traffic.stop()
            with self.steps.step("stop", "both nodes stop"):
                self.pair.stop()

    def _start(self) -> None:
        with self.steps.step("start", "two nodes start") as step:
            self.watch.wait("an active node and one in sync", self.watch.is_whole)
            active, other = self._roles()
            step.what = f"{active.name} is active, {other.name} is in sync and warm"

    def _switch_over(self) -> None:
        active, successor = self._send_in_peace()
        with self.steps.step("switchover", f"{active.name} hands over to {successor.name}") as step:
            self._measure(step, lambda: self._ask_for_switchover(active, successor))

    def _ask_for_switchover(self, active: DemoNode, successor: DemoNode) -> None:
        """Request the switchover, unless a handover is in progress.

        The demo repeats the request while the active refuses. On a slow host the successor may lack
        a batch, or the active may abort the handover.
        """
        status = self.watch.latest[active.name]
        if status and status["role"] == "active" and status["handover_to"] is None:
            try:
                begin_switchover(active.url, successor.name, "the demo")
            except EngineError as error:
                self.watch.refusal = str(error)

    def _lose(self) -> DemoNode:
        active, successor = self._send_in_peace()
        what = f"{active.name} loses all its processes, {successor.name} takes over"
        with self.steps.step("kill -9", what) as step:
            self._measure(step, active.lose)
        return active

    def _bring_back(self, node: DemoNode) -> None:
        what = f"{node.name} returns: journal, then Spark, then the batches that it missed"
        with self.steps.step("return", what) as step:
            began = time.monotonic()
            node.start()
            self.watch.wait(f"{node.name} to be in sync", lambda: self.watch.has_joined(node))
            in_sync = time.monotonic() - began
            self.watch.wait(f"{node.name} to be warm", self.watch.is_whole)
            step.what = f"{node.name} is in sync after {in_sync:.1f} s, and warm"

    def _finish(self) -> None:
        with self.steps.step("rest", "the rest of the year is sent") as step:
            left, began = self.traffic.rows.num_rows - self.traffic.sent, time.monotonic()
            self.traffic.finish()
            self.watch.wait("acks", lambda: self.traffic.is_done)
            rate = left / (time.monotonic() - began)
            step.what = f"{left:,} events acked, {rate:,.0f} per second"
        with self.steps.step("settle", "waiting for the last batch") as step:
            self.watch.wait("the last batch", self._settled())
            step.what = "every batch is in PostgreSQL"

    # -- measurements ------------------------------------------------------------------------------

    def _roles(self) -> tuple[DemoNode, DemoNode]:
        """The active and the other node.

        The roles may have changed since the last act of the demo. On a slow host Spark may fail on
        the active, and then the other node takes over.
        """
        active = self.watch.active()
        assert active is not None
        return active, self.pair.other(active)

    def _send_in_peace(self) -> tuple[DemoNode, DemoNode]:
        """Wait until both queries have published and both nodes are warm; return active and other.

        The wait lasts at least ``PEACE_SECONDS``.
        """
        until = time.time() + PEACE_SECONDS
        with self.steps.step("traffic", "sending events, both nodes run the same batches"):
            self.watch.wait(
                "output of both queries", lambda: self._all_since(until) and self.watch.is_whole()
            )
            return self._roles()

    def _measure(self, step: Step, cause: Callable[[], None]) -> None:
        """Cause an outage, and measure how long acks and output stopped.

        The watch calls ``cause`` after each poll of the nodes until acks resume. The time without
        output is an upper bound, since the sink's ledger has the time of its newest output only.
        """
        epoch, outputs, began = self._epoch(), self._outputs(), time.time()

        def acked() -> bool:
            if self._acked_after(epoch) is None:
                cause()
            return self._acked_after(epoch) is not None

        self.watch.wait("an ack of the new active", acked)
        resumed = self._acked_after(epoch)
        assert resumed is not None
        self.watch.wait("output of the new active", lambda: self._all_since(resumed))
        acks = gap_across(self.traffic.acks, began, epoch)
        now = self._outputs()
        output = max(now[query] - before for query, before in outputs.items())
        step.what += f": no ack for {acks:.2f} s, no output for at most {output:.1f} s;"

    def _epoch(self) -> int:
        """The epoch of the newest ack."""
        return self.traffic.acks[-1][1] if self.traffic.acks else 0

    def _acked_after(self, epoch: int) -> float | None:
        """The time of the first ack of an epoch later than ``epoch``, in seconds since 1970."""
        acks = list(self.traffic.acks)
        return next((at for at, found in acks if found > epoch), None)

    def _all_since(self, at: float) -> bool:
        """Whether every query has published a batch since ``at``."""
        outputs = self._outputs().values()
        return bool(outputs) and min(outputs) > at

    def _outputs(self) -> dict[str, float]:
        """The time at which each query's newest batch was published, in seconds since 1970."""
        with self.database.connect() as connection:
            rows = connection.execute(text(_LAST_OUTPUTS)).all()
        return {query: float(at) for query, at in rows}

    def _settled(self) -> Callable[[], bool]:
        def settled() -> bool:
            active = self.watch.active()
            status = self.watch.latest[active.name] if active else None
            queries = status["queries"] if status else {}
            for name, query in queries.items():
                if query["state"] == "failed":
                    raise EngineError(f"query {name} failed: {query['reason']}")
            return bool(queries) and all(query["settled"] for query in queries.values())

        return settled


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
