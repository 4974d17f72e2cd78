"""The command line of the benchmarks; what each measures is told in its module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.database import Database, database
from benchmarks.engine_side import NO_TICKS, EngineSide, engine_side
from benchmarks.idle import measure_idle
from benchmarks.latency import Latency, Pace
from benchmarks.memory import Overload
from benchmarks.phases import event_log, show_phases
from benchmarks.plain_side import PlainSide, plain_side
from benchmarks.price import both_sides, measure
from benchmarks.report import Result
from benchmarks.snapshots import state_of
from benchmarks.throughput import Throughput, measure_all
from benchmarks.timeline import show_timeline, taken
from benchmarks.workload import BATCH_EVENTS, WORKLOADS

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
console = Console()

ONE_A_SECOND = Pace("one request a second", 1, 1, 20)
STEADY = Pace("steady load of 20,000 events/s", 20, 1_000, 20)
ROOM = {"receive": {"max_backlog_events": 50_000_000}}

Keep = Annotated[Path | None, typer.Option(help="Work below this directory and keep it.")]
PassiveDisk = Annotated[
    Path | None,
    typer.Option(help="The passive keeps its data below this directory, on another disk."),
]


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        compare()


@app.command()
def compare(rounds: int = 5, rows: int = 2_000_000, keep: Keep = None) -> None:
    """Throughput and latency against a plain PySpark job."""
    throughput(rounds, rows, keep=keep and keep / "throughput")
    latency(3, keep=keep and keep / "latency")


@app.command()
def throughput(
    rounds: int = 5, rows: int = 2_000_000, only: str = "", phases: bool = False, keep: Keep = None
) -> None:
    """Rows a second for two filters and a windowed aggregation."""
    result = Result("throughput")
    chosen = [workload for workload in WORKLOADS if only in ("", workload.name)]
    query = NO_TICKS | {"max_events_per_batch": BATCH_EVENTS}
    with _both_sides(keep, BATCH_EVENTS // 2 if phases else 0, query=query, **ROOM) as sides:
        measure_all(chosen, Throughput(*sides, rows), rounds, result, console)
    _finish(result)


@app.command()
def latency(rounds: int = 3, phases: bool = False, keep: Keep = None) -> None:
    """From the ack to the row in PostgreSQL, at one request a second and under steady load."""
    result = Result("latency")
    with _both_sides(keep, 1 if phases else 0) as sides:
        measure = Latency(*sides)
        measure.measure(ONE_A_SECOND, rounds, result, console, {"micro-batch": 1.5})
        measure.measure(STEADY, rounds, result, console, {"event to sink": 1.3})
    _finish(result)


@app.command()
def idle(rounds: int = 2, seconds: float = 60, keep: Keep = None) -> None:
    """CPU of a node without input."""
    result = Result("idle")
    with _place(keep) as (directory, db), engine_side(directory / "engine", db) as engine:
        measure_idle(engine, seconds, rounds, result, console)
    _finish(result)


@app.command()
def memory(seconds: float = 180, keep: Keep = None) -> None:
    """Memory of the node process under overload, and that nothing acknowledged is lost."""
    result = Result("memory")
    with _place(keep) as (directory, db), engine_side(directory / "engine", db) as engine:
        Overload(engine, db).measure(seconds, result, console)
    _finish(result)


@app.command()
def timeline(seconds: float = 60, keep: Keep = None) -> None:
    """Where the latency of one acknowledged event goes, step by step."""
    with _place(keep) as (directory, db), taken(directory / "notes"):
        with engine_side(directory / "engine", db) as engine:
            trace = Latency(engine, None, db).trace
            trace(10)
            sent = trace(seconds)
        show_timeline(directory / "notes", sent, console)


@app.command()
def price(rounds: int = 5, passive_disk: PassiveDisk = None, keep: Keep = None) -> None:
    """What a second node costs: acks and rows a second of a pair against a node alone."""
    result = Result("price")
    with ExitStack() as stack:
        directory, db = stack.enter_context(_place(keep))
        place = passive_disk and Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=passive_disk))
        )
        measure(stack.enter_context(both_sides(directory, db, place)), rounds, result, console)
    _finish(result)


@app.command()
def snapshots(
    keys: int = 1_000_000,
    width: int = 0,
    provider: str = "hdfs",
    rounds: int = 3,
    keep: Keep = None,
) -> None:
    """What snapshots cost, and how a node comes back from an empty disk."""
    result = Result(f"snapshots {provider} {keys} keys of {width}")
    with (
        _place(keep) as (directory, db),
        state_of(directory, db, keys, width, provider, console) as measure,
    ):
        measure.cost(result)
        measure.restore(result)
        if rounds:
            measure.acks(result)
            measure.throughput(rounds, result)
    _finish(result)


@contextmanager
def _both_sides(
    keep: Path | None, phases_of: int, **sections: dict[str, Any]
) -> Iterator[tuple[EngineSide, PlainSide, Database]]:
    """Both sides on one database. ``phases_of`` > 0 shows Spark's phases of batches that large."""
    with _place(keep) as (directory, db):
        logs = {side: directory / f"{side}-events" for side in ("engine", "plain")}
        spark = {side: event_log(log) if phases_of else {} for side, log in logs.items()}
        sections["query"] = sections.get("query", {}) | {"spark": spark["engine"]}
        with engine_side(directory / "engine", db, **sections) as engine:
            db.make_plain_tables()
            with plain_side(directory / "plain", db, spark["plain"]) as plain:
                yield engine, plain, db
        if phases_of:
            show_phases(logs, console, phases_of)


@contextmanager
def _place(keep: Path | None) -> Iterator[tuple[Path, Database]]:
    """A directory for one run, with a PostgreSQL in it."""
    if keep is not None:
        keep.mkdir(parents=True)
        with database(keep / "postgres") as db:
            yield keep, db
        return
    with (
        tempfile.TemporaryDirectory(prefix="ha-engine-bench-") as name,
        database(Path(name) / "postgres") as db,
    ):
        yield Path(name), db


def _finish(result: Result) -> None:
    result.show(console)
    console.print(f"written to {result.save()}", highlight=False)


if __name__ == "__main__":
    app()
