"""Each benchmark from its sizes to its result: what the commands and the whole run share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from benchmarks import (
    batches,
    cluster,
    connectors,
    failover,
    footprint,
    kafka,
    kafka_reader,
    lines,
    nice,
    price,
    receive,
    shuffle,
    sizes,
)
from benchmarks.database import Database
from benchmarks.engine_side import NO_EMPTY_BATCHES, EngineSide, Sections, engine_side, pair_side
from benchmarks.idle import measure_idle
from benchmarks.latency import Latency, Pace
from benchmarks.memory import Overload
from benchmarks.offered import OfferedLoad
from benchmarks.phases import event_log, show_phases
from benchmarks.places import place
from benchmarks.plain_side import PlainSide, plain_pair, plain_side
from benchmarks.report import Result
from benchmarks.restart import FIRST_OUTPUT, Restarts
from benchmarks.snapshots import state_of
from benchmarks.sustained import Sustained
from benchmarks.throughput import Throughput, measure_all
from benchmarks.workload import BATCH_EVENTS, REQUEST_ROWS, WINDOWED, WORKLOADS

ONE_A_SECOND = Pace("one request a second", 1, 1, 20)
STEADY = Pace("steady load of 20,000 events/s", 20, 1_000, 20)
ROOM: dict[str, dict[str, Any]] = {"receive": {"max_backlog_events": 50_000_000}}
JOURNAL_KEPT: dict[str, dict[str, Any]] = {"snapshot": {"revisions_to_keep": 1_000}}
"""Snapshots are taken as ever, but nothing is trimmed behind them."""
PAIR_RATIO_MIN = 0.7


class Runs:
    """``keep``: work below this directory, one for each run, and leave it there."""

    def __init__(self, console: Console, keep: Path | None = None) -> None:
        self._console, self._keep = console, keep

    def throughput(self, rounds: int, rows: int, only: str = "", phases: bool = False) -> Result:
        result = Result("throughput")
        chosen = [workload for workload in WORKLOADS if only in ("", workload.name)]
        query = NO_EMPTY_BATCHES | {"max_events_per_batch": BATCH_EVENTS}
        shown = BATCH_EVENTS // 2 if phases else 0
        with self._both_sides("throughput", shown, {"query": query} | ROOM) as sides:
            measure_all(chosen, Throughput(*sides, rows), rounds, result, self._console)
        return result

    def pair(self, rate: int, seconds: float, rounds: int, rows: int) -> Result:
        result = Result("pair")
        sections: dict[str, dict[str, Any]] = {
            "query": NO_EMPTY_BATCHES | {"max_events_per_batch": BATCH_EVENTS},
            **ROOM,
            **JOURNAL_KEPT,
        }
        with self._place("pair") as (directory, db):
            with pair_side(directory / "engine", db, [WINDOWED], sections) as engine:
                after_id = 0
                if rounds:
                    after_id = self._against_a_plain_pair(
                        directory, db, engine, rounds, rows, result
                    )
                sustained = Sustained(engine, db, self._console)
                sustained.run(rate, seconds, after_id)
            sustained.report(result)
        return result

    def _against_a_plain_pair(
        self,
        directory: Path,
        db: Database,
        engine: EngineSide,
        rounds: int,
        rows: int,
        result: Result,
    ) -> int:
        """The last id that was sent."""
        db.make_plain_tables([WINDOWED], sides=("plain", "other"))
        with plain_pair(directory / "plain", db, [WINDOWED]) as plain:
            throughput = Throughput(engine, plain, db, rows, PAIR_RATIO_MIN)
            measure_all([WINDOWED], throughput, rounds, result, self._console)
        return throughput.next_id

    def latency(self, rounds: int, phases: bool = False) -> Result:
        result = Result("latency")
        with self._both_sides("latency", 1 if phases else 0) as sides:
            measure = Latency(*sides)
            measure.measure(ONE_A_SECOND, rounds, result, self._console, {"micro-batch": 1.5})
            measure.measure(STEADY, rounds, result, self._console, {"event to sink": 1.3})
        return result

    def load(self, rates: Sequence[int], seconds: float, rounds: int) -> Result:
        result = Result("load")
        for words, side in (("one node", engine_side), ("pair", pair_side)):
            with (
                self._place(f"load-{words.replace(' ', '-')}") as (directory, db),
                side(directory / "engine", db, WORKLOADS, ROOM) as engine,
            ):
                load = OfferedLoad(words, engine, db, self._console)
                load.measure(rates, seconds, rounds, result)
        return result

    def restart(self, rounds: int, *, alone: bool = True, busy: int = 0) -> Result:
        beside = f" beside {busy} busy processes" if busy else ""
        result = Result(("restart" if alone else "restart of three queries") + beside)
        workloads = [FIRST_OUTPUT] if alone else WORKLOADS
        with (
            self._place("restart") as (directory, db),
            engine_side(directory / "engine", db, workloads) as engine,
        ):
            Restarts(engine, db, busy, self._console).measure(rounds, result)
        return result

    def nice(self, rate: int, seconds: float, rounds: int) -> Result:
        result = Result("nice")
        started = count()

        @contextmanager
        def pair_at(level: int) -> Iterator[EngineSide]:
            sections = {"query": {"nice": level}, **ROOM}
            with (
                self._place(f"nice-{next(started)}") as (directory, db),
                pair_side(directory / "engine", db, nice.WORKLOADS, sections) as engine,
            ):
                yield engine

        nice.measure(pair_at, rate, seconds, rounds, result, self._console)
        return result

    def sizes(self, rounds: int, rows: int) -> Result:
        result = Result("sizes")
        with ExitStack() as stack:
            nodes = {limit: stack.enter_context(self._node_at(limit)) for limit in sizes.LIMITS}
            sizes.Sizes(nodes, rows, result, self._console).measure(rounds)
        return result

    def batches(self, java: str, rounds: int) -> Result:
        result = Result("batches")
        batches.measure(java, rounds, result, self._console)
        return result

    def failover(self, count: int, ttl: str) -> Result:
        result = Result("failover")
        with self._place("failover") as (directory, db):
            failover.measure(directory, db, count, ttl, result)
        return result

    def connectors(self, kinds: Sequence[str], rows: int, rounds: int) -> Result:
        result = Result("connectors")
        for kind in kinds:
            with self._place(f"connectors-{kind}") as (directory, db):
                where = directory / "engine"
                connectors.measure(kind, rows, rounds, where, db, result, self._console)
        return result

    def kafka(self, rounds: int, rows: int) -> Result:
        result = Result("kafka")
        with self._place("kafka") as (directory, db):
            kafka.measure(rows, rounds, directory, db, result, self._console)
        return result

    def kafka_reader(self, ways: Sequence[str], rounds: int, planning: bool) -> Result:
        result = Result("kafka-reader")
        with ExitStack() as stack:
            if self._keep is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reader-")))
            else:
                directory = self._keep / "kafka-reader"
                directory.mkdir(parents=True)
            kafka_reader.measure(ways, rounds, directory, result, self._console, planning=planning)
        return result

    def cluster(self, rounds: int, rows: int, *, growth: bool) -> Result:
        result = Result("cluster-growth" if growth else "cluster")
        with self._place("cluster") as (directory, db):
            if growth:
                cluster.measure_growth(rounds, directory, db, result, self._console)
            else:
                cluster.measure(rows, rounds, directory, db, result, self._console)
        return result

    def shuffle(self, rounds: int) -> Result:
        result = Result("shuffle")
        shuffle.measure(rounds, result, self._console)
        return result

    def receive(self, seconds: float, rounds: int) -> Result:
        result = Result("receive")
        receive.measure(receive.Load(seconds, connections=32), rounds, self._keep, result)
        return result

    def idle(self, rounds: int, seconds: float, queries: int = len(WORKLOADS)) -> Result:
        result = Result("idle")
        with (
            self._place("idle") as (directory, db),
            engine_side(directory / "engine", db, WORKLOADS[:queries]) as engine,
        ):
            measure_idle(engine, seconds, rounds, result, self._console)
        return result

    def footprint(self, rounds: int, rate: int, seconds: float, code: Path | None) -> Result:
        result = Result("footprint")
        for _ in range(rounds):
            with (
                self._place("footprint") as (directory, db),
                engine_side(directory / "engine", db, [FIRST_OUTPUT], code=code) as engine,
            ):
                footprint.measure(engine, FIRST_OUTPUT.name, rate, seconds, result, self._console)
        return result

    def memory(self, seconds: float) -> Result:
        result = Result("memory")
        with (
            self._place("memory") as (directory, db),
            engine_side(directory / "engine", db) as engine,
        ):
            Overload(engine, db).measure(seconds, result, self._console)
        return result

    def price(self, rounds: int, passive_disk: Path | None = None) -> Result:
        result = Result("price")
        with ExitStack() as stack:
            directory, db = stack.enter_context(self._place("price"))
            passive = passive_disk and Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=passive_disk))
            )
            sides = stack.enter_context(price.both_sides(directory, db, passive))
            price.measure(sides, rounds, result, self._console)
        return result

    def lines(self, rate: str, rounds: int) -> Result:
        lines.require_own_network()
        result = Result(f"lines {rate}")
        with (
            self._place("lines") as (directory, db),
            price.both_sides(directory, db) as sides,
        ):
            lines.measure(sides, rate, rounds, result, self._console)
        return result

    def snapshots(self, keys: int, width: int, provider: str, rounds: int) -> Result:
        result = Result(f"snapshots {provider} {keys} keys of {width}")
        with (
            self._place("snapshots") as (directory, db),
            state_of(directory, db, keys, width, provider, self._console) as measure,
        ):
            measure.cost(result)
            measure.restore(result)
            if rounds:
                measure.acks(result)
                measure.throughput(rounds, result)
        return result

    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def _place(self, name: str) -> Iterator[tuple[Path, Database]]:
        with place(self._keep and self._keep / name) as found:
            yield found

    @contextmanager
    def _node_at(self, batch_events: int) -> Iterator[tuple[EngineSide, Database]]:
        """A node whose batches hold at most so many events; no record may hold more."""
        records = {"max_record_rows": min(REQUEST_ROWS, batch_events)}
        sections = {
            "query": NO_EMPTY_BATCHES | {"max_events_per_batch": batch_events},
            "receive": ROOM["receive"] | records,
        }
        with (
            self._place(f"sizes-{batch_events}") as (directory, db),
            engine_side(directory / "engine", db, [WINDOWED], sections) as engine,
        ):
            yield engine, db

    @contextmanager
    def _both_sides(
        self, name: str, phases_of: int, sections: Sections = MappingProxyType({})
    ) -> Iterator[tuple[EngineSide, PlainSide, Database]]:
        """Both sides on one database. ``phases_of`` > 0 shows Spark's phases of batches so big."""
        with self._place(name) as (directory, db):
            logs = {side: directory / f"{side}-events" for side in ("engine", "plain")}
            spark = {side: event_log(log) if phases_of else {} for side, log in logs.items()}
            query = {"query": sections.get("query", {}) | {"spark": spark["engine"]}}
            with engine_side(directory / "engine", db, WORKLOADS, {**sections, **query}) as engine:
                db.make_plain_tables()
                with plain_side(directory / "plain", db, spark["plain"]) as plain:
                    yield engine, plain, db
            if phases_of:
                show_phases(logs, self._console, phases_of)
