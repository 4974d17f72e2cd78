"""The demo as a user sees it: start, send the year, wait, compare, stop."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.client import Producer
from ha_engine.client.admin import fetch_status
from ha_engine.demo.comparison import Outcome, compare
from ha_engine.demo.flights import departures
from ha_engine.errors import EngineError, NodeUnreachable
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from ha_engine.query.session import check_java

START_SECONDS_MAX = 120.0
SETTLE_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 30.0
QUIET_POLLS = 5
"""So many looks in a row without change mean that the ticks are over too."""
ROWS_PER_SEND = 2_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo lives while it runs."""

    directory: Path
    url: str
    database_url: str

    @property
    def log(self) -> Path:
        return self.directory / "node.log"


def show(directory: Path, console: Console) -> bool:
    """Runs the whole demo below ``directory``, which is emptied first. True when all is equal."""
    check_java()
    flights = departures()
    _empty(directory)
    console.print(f"one year of New York departures: {flights.num_rows:,} flights")
    with EmbeddedPostgres(directory / "postgres") as server:
        upgrade(open_engine(server.url))
        place = Place(directory, f"http://127.0.0.1:{_free_port()}", server.url)
        with _node(place, console):
            _send(place, flights, console)
            _settle(place, console)
            outcomes = compare(place.database_url, flights)
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


# -- the node --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _node(place: Place, console: Console) -> Iterator[None]:
    """A node as a process of its own, exactly as a user would run it."""
    config = _write_config(place)
    command = [sys.executable, "-m", "ha_engine", "run", "--config", str(config)]
    with place.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        with console.status("starting a node: Spark takes some seconds") as waiting:
            began = time.monotonic()
            _wait(lambda: _is_running(process, place), START_SECONDS_MAX, "start", place)
            waiting.stop()
        console.print(f"node active, queries running after {time.monotonic() - began:.1f} s")
        yield
    finally:
        _stop(process)


def _write_config(place: Place) -> Path:
    application = place.directory / "flights.yaml"
    application.write_text(sample_application("flights.yaml"))
    config = {
        "group": "demo",
        "application": str(application),
        "node": {"id": "node-a", "data_dir": str(place.directory / "node-a")},
        "database": {"url": place.database_url},
        "http": {"listen": place.url.removeprefix("http://")},
    }
    path = place.directory / "ha-engine.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def sample_application(name: str) -> str:
    """The text of a sample application: packaged in a wheel, in conf/ of a source tree."""
    packaged = importlib.resources.files("ha_engine") / "samples" / name
    if packaged.is_file():
        return packaged.read_text()
    return (Path(__file__).parents[2] / "conf" / "applications" / name).read_text()


def _is_running(process: subprocess.Popen[bytes], place: Place) -> bool:
    if process.poll() is not None:
        raise EngineError(f"the node ended with exit code {process.returncode}; see {place.log}")
    try:
        status = fetch_status(place.url)
    except NodeUnreachable:
        return False
    running = all(query["state"] == "running" for query in status["queries"].values())
    return bool(status["role"] == "active" and running)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- the year --------------------------------------------------------------------------------------


def _send(place: Place, flights: pa.Table, console: Console) -> None:
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True) as progress,
        Producer(endpoints=[place.url]) as producer,
    ):
        bar = progress.add_task("sending the year through HTTP", total=flights.num_rows)
        for batch in flights.to_batches(max_chunksize=ROWS_PER_SEND):
            producer.send("departures", batch)
            progress.advance(bar, batch.num_rows)
        producer.flush()
    seconds = time.monotonic() - began
    console.print(
        f"sent and acknowledged in {seconds:.1f} s ({flights.num_rows / seconds:,.0f} rows/s)"
    )


def _settle(place: Place, console: Console) -> None:
    """Waits until every batch is published and the ticks are over."""
    seen: list[Any] = []

    def settled() -> bool:
        queries = fetch_status(place.url)["queries"]
        for name, query in queries.items():
            if query["state"] == "failed":
                raise EngineError(f"query {name} failed: {query['reason']}")
        seen.append({name: (q["batch"], q["published"]) for name, q in queries.items()})
        done = all(
            q["backlog_events"] == 0 and set(q["published"].values()) == {q["mark"]}
            for q in queries.values()
        )
        return done and len(seen) > QUIET_POLLS and seen[-QUIET_POLLS] == seen[-1]

    began = time.monotonic()
    with console.status("waiting for the last batch"):
        _wait(settled, SETTLE_SECONDS_MAX, "publish everything", place)
    console.print(f"everything published {time.monotonic() - began:.1f} s after the last ack")


def _wait(condition: Any, seconds: float, what: str, place: Place) -> None:
    waiting = Retrying(
        retry=retry_if_result(lambda done: not done),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.25),
    )
    try:
        waiting(condition)
    except RetryError as error:
        raise EngineError(
            f"the node did not {what} within {seconds:.0f} s; see {place.log}"
        ) from error


# -- the end ---------------------------------------------------------------------------------------


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
