"""The command line of the benchmarks; what each measures is told in its module."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.commands import measure as measure_commands
from benchmarks.engine_side import engine_side
from benchmarks.everything import quick, run_all, whole
from benchmarks.kafka_reader import WAYS
from benchmarks.latency import Latency
from benchmarks.places import place
from benchmarks.report import Result
from benchmarks.runs import Runs
from benchmarks.sizing import Deployment, add_figures, measure_asks
from benchmarks.timeline import show_timeline, taken
from tests.faults.exchanges import KINDS

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False)
console = Console()

Keep = Annotated[Path | None, typer.Option(help="Work below this directory and keep it.")]
Rounds = Annotated[int, typer.Option(help="Samples of each figure.")]
Seconds = Annotated[float, typer.Option(help="How long one sample takes.")]
PassiveDisk = Annotated[
    Path | None,
    typer.Option(help="The passive keeps its data below this directory, on another disk."),
]


@app.callback(invoke_without_command=True)
def _default(
    context: typer.Context,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="Everything in small: a quarter of an hour.")
    ] = False,
    keep: Keep = None,
) -> None:
    """Without a command: all of them, for an hour and a half, and a picture."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # the nodes end with it
    if context.invoked_subcommand is not None:
        return
    runs = Runs(console, keep)
    steps, name = (quick(runs), "quick") if is_quick else (whole(runs), "bench")
    raise typer.Exit(1 if run_all(steps, name, console).failures else 0)


@app.command()
def throughput(
    rounds: Rounds = 5,
    rows: int = 2_000_000,
    only: str = "",
    phases: bool = False,
    keep: Keep = None,
) -> None:
    """Rows a second of one node against a plain job: two filters and a windowed aggregation."""
    _finish(Runs(console, keep).throughput(rounds, rows, only, phases))


@app.command()
def pair(
    rate: Annotated[int, typer.Option(help="Events a second that are offered.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="How long they are offered.")] = 300,
    rounds: Annotated[int, typer.Option(help="Samples against the plain pair.")] = 5,
    rows: int = 2_000_000,
    keep: Keep = None,
) -> None:
    """A pair at an offered rate, its lag and its CPU; and rows a second against two plain jobs."""
    _finish(Runs(console, keep).pair(rate, seconds, rounds, rows))


@app.command()
def latency(
    rates: Annotated[
        str, typer.Option(help="Events a second, as 1,1000,10000: of a node and of a pair.")
    ] = "",
    seconds: Seconds = 20,
    rounds: Rounds = 3,
    phases: bool = False,
    keep: Keep = None,
) -> None:
    """From the ack to the row in PostgreSQL: against a plain job, or with --rates under load."""
    runs = Runs(console, keep)
    if rates:
        _finish(runs.load([int(rate) for rate in rates.split(",")], seconds, rounds))
    else:
        _finish(runs.latency(rounds, phases))


@app.command()
def restart(rounds: Rounds = 5, alone: bool = True, busy: int = 0, keep: Keep = None) -> None:
    """First output of a node after kill -9, with and without an archive of Spark's classes.

    Of one query alone, or of one of three that start at once (--no-alone); beside --busy processes
    that compete with it.
    """
    _finish(Runs(console, keep).restart(rounds, alone=alone, busy=busy))


@app.command()
def nice(rate: int = 50_000, seconds: Seconds = 12, rounds: Rounds = 3, keep: Keep = None) -> None:
    """Acks of single events while two Sparks are at work, by query.nice."""
    _finish(Runs(console, keep).nice(rate, seconds, rounds))


@app.command()
def sizes(rows: int = 1_000_000, rounds: Rounds = 2, keep: Keep = None) -> None:
    """Rows a second of one node by rows per request, and by query.max_events_per_batch."""
    _finish(Runs(console, keep).sizes(rounds, rows))


@app.command()
def sizing(
    events: Annotated[float, typer.Option(help="Events a second.")] = 10_000_000,
    event_bytes: int = 200,
    topics: int = 10,
    partitions: Annotated[int, typer.Option(help="Of each topic.")] = 1_000,
    ask: Annotated[float, typer.Option(help="Seconds between records of a log.")] = 0.2,
    queries: int = 1,
    batch: Annotated[float, typer.Option(help="Seconds between batches of a query.")] = 1.0,
    buckets: int = 64,
    state_partitions: int = 200,
    stores: Annotated[int, typer.Option(help="In each of them; a join has four.")] = 1,
    is_measured: Annotated[
        bool, typer.Option("--measure", help="Ask a real broker for the ends of topics, too.")
    ] = False,
) -> None:
    """Compute the costs of a cluster with Kafka by formulae; see docs/SIZING.md."""
    result = Result("sizing")
    deployment = Deployment(
        events_per_second=events,
        event_bytes=event_bytes,
        topics=topics,
        partitions=partitions,
        ask_seconds=ask,
        queries=queries,
        batch_seconds=batch,
        buckets=buckets,
        state_partitions=state_partitions,
        stores=stores,
    )
    add_figures(deployment, result)
    if is_measured:
        measure_asks(result)
    _finish(result)


@app.command()
def batches(java: str = "-XX:+UseParallelGC", rounds: Rounds = 2) -> None:
    """One micro-batch of a query process alone, against other options of its Java."""
    _finish(Runs(console, None).batches(java, rounds))


@app.command()
def failover(count: int = 12, ttl: str = "5s", keep: Keep = None) -> None:
    """Outages of ingest and output of a pair, by fault (ttl: 2s or 5s)."""
    _finish(Runs(console, keep).failover(count, ttl))


@app.command()
def idle(rounds: Rounds = 2, seconds: Seconds = 60, queries: int = 3, keep: Keep = None) -> None:
    """CPU and wake-ups of a node without input, and what watchers of its status cost."""
    _finish(Runs(console, keep).idle(rounds, seconds, queries))


@app.command()
def footprint(
    rate: int = 20_000,
    seconds: Seconds = 60,
    rounds: Rounds = 3,
    code: Annotated[
        Path | None, typer.Option(help="Directory of another release, to compare with.")
    ] = None,
    keep: Keep = None,
) -> None:
    """CPU and memory of each process of a node with one query: at its start, at rest, at work."""
    _finish(Runs(console, keep).footprint(rounds, rate, seconds, code))


@app.command()
def commands(
    rounds: Rounds = 7,
    code: Annotated[
        Path | None, typer.Option(help="Directory of another release, to compare with.")
    ] = None,
) -> None:
    """CPU of each command of ha-engine until it ends, where no node answers."""
    result = Result("commands")
    measure_commands(code, rounds, result)
    _finish(result)


@app.command()
def memory(seconds: Seconds = 180, keep: Keep = None) -> None:
    """Memory of the node process under overload, and that nothing acknowledged is lost."""
    _finish(Runs(console, keep).memory(seconds))


@app.command()
def price(rounds: Rounds = 5, passive_disk: PassiveDisk = None, keep: Keep = None) -> None:
    """What a second node costs: acks and rows a second of a pair against a node alone."""
    _finish(Runs(console, keep).price(rounds, passive_disk))


@app.command()
def lines(
    rate: Annotated[
        str, typer.Option(help="Of the line to each host, as tc writes it.")
    ] = "100mbit",
    rounds: Rounds = 5,
    keep: Keep = None,
) -> None:
    """The same where the line to each host is the limit. For root, below unshare --net."""
    try:
        _finish(Runs(console, keep).lines(rate, rounds))
    except PermissionError as error:
        raise SystemExit(str(error)) from None


@app.command()
def connectors(
    kind: Annotated[
        list[str] | None, typer.Option(help="Repeat for more; without it, all kinds.")
    ] = None,
    rows: int = 300_000,
    rounds: Rounds = 3,
    keep: Keep = None,
) -> None:
    """Rows a second and the way of one row of each connector, against HTTP and PostgreSQL."""
    _finish(Runs(console, keep).connectors(kind or list(KINDS), rows, rounds))


@app.command()
def kafka(rounds: Rounds = 5, rows: int = 1_000_000, keep: Keep = None) -> None:
    """Rows a second of one node from Kafka to Kafka, against a plain job with Spark's connector."""
    _finish(Runs(console, keep).kafka(rounds, rows))


@app.command()
def kafka_reader(
    ways: Annotated[
        str, typer.Option(help="Of spark, wrapper, short and python; the first is the base.")
    ] = ",".join(WAYS),
    rounds: Rounds = 3,
    planning: bool = False,
    keep: Keep = None,
) -> None:
    """How Spark's executors read Kafka at given offsets: Spark's source wrapped, or in Python.

    With --planning, what a mark of many partitions costs.
    """
    _finish(Runs(console, keep).kafka_reader(ways.split(","), rounds, planning))


@app.command()
def cluster(
    rounds: Rounds = 3,
    rows: int = 1_000_000,
    growth: Annotated[
        bool, typer.Option("--growth", help="How rows a second grow with the executors, instead.")
    ] = False,
    keep: Keep = None,
) -> None:
    """Queries on a standalone cluster: a node against a plain job that reads the same topic."""
    _finish(Runs(console, keep).cluster(rounds, rows, growth=growth))


@app.command()
def shuffle(rounds: Rounds = 3) -> None:
    """A shuffle whose blocks are read in one order, against Spark's own, on two executors."""
    _finish(Runs(console, None).shuffle(rounds))


@app.command()
def snapshots(
    keys: int = 1_000_000,
    width: int = 0,
    provider: str = "hdfs",
    rounds: int = 3,
    keep: Keep = None,
) -> None:
    """What snapshots cost, and how a node comes back from an empty disk."""
    _finish(Runs(console, keep).snapshots(keys, width, provider, rounds))


@app.command()
def timeline(seconds: float = 60, keep: Keep = None) -> None:
    """Where the latency of one acknowledged event goes, step by step."""
    with place(keep) as (directory, db), taken(directory / "notes"):
        with engine_side(directory / "engine", db) as engine:
            trace = Latency(engine, None, db).trace
            trace(10)
            sent = trace(seconds)
        show_timeline(directory / "notes", sent, console)


def _finish(result: Result) -> None:
    result.show(console)
    console.print(f"written to {result.save()}", highlight=False)


if __name__ == "__main__":
    app()
