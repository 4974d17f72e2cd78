"""Faults of all parts of a cluster, while rows go through it: each row must be in each output once.

    python -m tests.faults.cluster_failovers --count 200 [--seed N] [--fault worker --fault broker]
    python -m tests.faults.cluster_failovers --count 200 --seed N --results FILE   # continues

Three brokers, two masters, four workers, two receivers and a pair run on this machine. A program
sends numbered rows to the receivers all the time. A hot query writes them to a table and in
transactions to a topic, and the tasks of a warm query write them to the buckets of a table. After
each fault every row must arrive once, before the next fault. The run prints the longest time
without a row in each output. Afterwards a plain job, which is started again whenever it ends, goes
through some of the same faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import yaml
from rich.console import Console
from rich.table import Table as Grid

from tests.cluster.deployment import Services, start_receivers, start_services
from tests.connectors.kafka_broker import create
from tests.connectors.proxy import Proxy
from tests.connectors.receivers import Receiver
from tests.e2e.network import BETWEEN_NODES, Network
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.faults import cluster_parts
from tests.faults.active import has_changed, heal, in_random_order
from tests.faults.active import inflict as inflict_on_active
from tests.faults.cluster_parts import Heal, coordinator_of, kill_broker
from tests.faults.failovers import LEASES
from tests.faults.numbers import (
    BATCH_ROWS_MAX,
    ROWS,
    Numbers,
    Output,
    Table,
    Verdict,
    has_settled,
    longest_gap,
    reading,
    verdict_of,
)
from tests.faults.plain_restarts import CORES, running_plain
from tests.waiting import wait_until

OF_THE_ACTIVE = ("switchover", "node", "jvm", "tree", "frozen")
LINKS = ("link of the nodes", "link to the database", "links to the brokers")
FAULTS = (*OF_THE_ACTIVE, *cluster_parts.FAULTS, "coordinator", "receiver", *LINKS)
"""Besides those of the active and of the parts around it: kill -9 of the broker that coordinates
the transactions of the sink, and of a receiver; links that forward nothing for CUT_SECONDS."""
OF_PLAIN = ("jvm", "executor", "worker", "broker")
NEEDS_BOTH_NODES = (*OF_THE_ACTIVE, "link of the nodes", "link to the database")
CUT_SECONDS = 5.0
"""Longer than the ttl."""
ENGINE, PLAIN = "engine", "plain"
STREAM, HOT, WARM = "numbers", "hot", "warm"
HOT_TOPIC, LEDGER = "hot_topic", f"test/{HOT}/topic"
KEYS = 100_000
"""The rows that are sent at first. Each is a key of the state, which has those of three hours."""
PATIENCE = 240.0
SAMPLE_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """One fault: the longest time without a row in each output, and how many rows are wrong, also
    since the fault before has been healed."""

    side: str
    fault: str
    gaps: dict[str, float]
    lost: int = 0
    twice: int = 0


@dataclass
class Report:
    """The outcomes, also those of earlier runs with this seed, which ``file`` keeps."""

    seed: int
    file: Path
    outcomes: list[Outcome] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        for line in map(json.loads, lines):
            if line.pop("seed") == self.seed:
                self.outcomes.append(Outcome(**line))

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        with self.file.open("a") as file:
            file.write(json.dumps({"seed": self.seed, **asdict(outcome)}) + "\n")
        gaps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.gaps.items())
        print(f"{len(self.outcomes)}: {outcome.side}: {outcome.fault}: {gaps}", flush=True)

    def count(self, side: str) -> int:
        return sum(outcome.side == side for outcome in self.outcomes)


class Watch:
    """Compares outputs with the numbers that were sent, from one fault to the next."""

    def __init__(self, numbers: Numbers, outputs: Sequence[Output]) -> None:
        self._numbers, self._outputs = numbers, outputs
        self._wanted = range(0)
        self._lost = self._doubled = 0

    def await_rows(self, lives: Callable[[], object] = lambda: True) -> None:
        """Wait until rows that are sent from now on are in each output, with all before them."""
        end = self._numbers.sent + 2 * ROWS
        wait_until(lambda: self._is_sent(end), within=PATIENCE, every=0.05)
        self._wanted = range(self._wanted.start, end)
        wait_until(lambda: lives() and self._have_settled(), within=PATIENCE, every=0.2)

    def outcome(self, side: str, fault: str, since: float) -> Outcome:
        """Return the gaps since ``since``, and the wrong rows since the last outcome.

        A batch that is written again has rows of before the fault too, so every row that has come
        twice counts.
        """
        gaps = {one.name: longest_gap(one.moments(since), since) for one in self._outputs}
        self.judge()
        before, self._doubled = self._doubled, sum(one.doubled() for one in self._outputs)
        lost, self._lost = self._lost, 0
        return Outcome(side, fault, gaps, lost, self._doubled - before)

    def judge(self) -> None:
        """Count which of the rows are lost that ``await_rows`` has waited for."""
        self._lost += sum(one.lost for one in self._verdicts())
        self._wanted = range(self._wanted.stop, self._wanted.stop)

    def final(self) -> list[Verdict]:
        """Judge all rows, after the last was sent."""
        self._wanted = range(self._numbers.sent)
        wait_until(self._have_settled, within=PATIENCE, every=0.5)
        return self._verdicts()

    def _is_sent(self, end: int) -> bool:
        self._numbers.require_well()
        return self._numbers.sent >= end

    def _have_settled(self) -> bool:
        first = self._wanted.start
        return all(has_settled(one.numbers(first), self._wanted) for one in self._outputs)

    def _verdicts(self) -> list[Verdict]:
        return [
            verdict_of(one.name, one.numbers(self._wanted.start), self._wanted)
            for one in self._outputs
        ]


@dataclass(frozen=True)
class Deployment:
    """All that runs, and the links between its parts."""

    services: Services
    receivers: list[Receiver]
    pair: Pair
    network: Network
    to_brokers: list[Proxy]

    def is_ready(self, fault: str) -> bool:
        """Return whether all parts that ``fault`` needs work again."""
        assert self.pair.lives()
        self.require_no_failure()
        active = self.pair.whole() if fault in NEEDS_BOTH_NODES else self.pair.active()
        status = active.status() if active else None
        executors = status and status["query_process"]["executors"]
        return bool(
            executors
            and executors["live"] == executors["wanted"]
            and executors["master_connected"]
            and cluster_parts.is_whole(self.services)
        )

    def require_no_failure(self) -> bool:
        """Fail if a query needs an operator. Else return True."""
        for node in self.pair.nodes.values():
            queries = (node.status() or {"queries": {}})["queries"]
            failed = {
                name: one["reason"] for name, one in queries.items() if one["state"] == "failed"
            }
            assert not failed, f"a fault failed a query: {failed}"
        return True

    def active(self) -> NodeUnderTest:
        found = self.pair.active()
        assert found is not None
        return found

    def inflict(self, fault: str, chance: random.Random) -> Heal:
        """Inject a fault, and return what heals it."""
        match fault:
            case "coordinator":
                return kill_broker(self.services, coordinator_of(self.services, LEDGER))
            case "receiver":
                receiver = chance.choice(self.receivers)
                receiver.kill()
                return receiver.start
            case "link of the nodes":
                return self._cut(BETWEEN_NODES)
            case "link to the database":
                return self._cut(f"{self.active().name} to database")
            case "links to the brokers":
                for link in self.to_brokers:
                    link.freeze()
                time.sleep(CUT_SECONDS)
                for link in self.to_brokers:
                    link.thaw()
                return lambda: None
            case _ if fault in OF_THE_ACTIVE:
                return self._hit_the_active(fault)
        status = self.active().require_status()
        application = status["query_process"]["executors"]["application"]
        return cluster_parts.inflict(fault, self.services, chance, application)

    def _cut(self, line: str) -> Heal:
        self.network.silence(line)
        time.sleep(CUT_SECONDS)
        self.network.heal()
        return lambda: None

    def _hit_the_active(self, fault: str) -> Heal:
        active = self.active()
        before = active.require_status()
        inflict_on_active(fault, active)
        wait_until(lambda: has_changed(self.pair, before), within=PATIENCE, every=0.02)
        return lambda: heal(fault, self.pair, active)


def application(brokers: list[str]) -> str:
    """Return an application whose queries write the numbers of a topic to all outputs."""
    log = {"type": "kafka", "brokers": brokers, "topic": STREAM, "deduplicate": True}
    columns = {"n": "bigint not null", "at": "timestamp not null"}
    watermark = {"column": "at", "delay": "3 hours"}
    topic = {"name": "topic", "type": "kafka", "brokers": brokers, "topic": HOT_TOPIC}
    hot = [{"name": "table", "type": "postgres", "table": HOT}, topic | {"format": "json"}]
    warm = [{"name": "table", "type": "postgres", "table": WARM, "buckets": 2}]
    sql = f"SELECT n FROM {STREAM}"
    tree = {
        "name": "numbers",
        "streams": {STREAM: {"schema": columns, "watermark": watermark, "log": log}},
        "queries": {
            HOT: {"sql": sql, "sinks": hot},
            WARM: {"sql": sql, "sinks": warm, "standby": "warm"},
        },
    }
    return yaml.safe_dump(tree, sort_keys=False)


@dataclass(frozen=True)
class Run:
    """The parts that both sides share. The engine gets no new fault after the moment ``until``."""

    home: Path
    services: Services
    numbers: Numbers
    chance: random.Random
    report: Report
    until: float

    def engine(self, faults: Sequence[str], receivers: list[Receiver]) -> None:
        """Inject ``faults`` while a pair runs, and judge all rows at the end."""
        services, brokers = self.services, self.services.brokers
        with ExitStack() as stack:
            outputs: list[Output] = [
                stack.enter_context(closing(Table(services.url, name))) for name in (HOT, WARM)
            ]
            outputs.append(stack.enter_context(reading(brokers.brokers, HOT_TOPIC)))
            nodes = [brokers.node(number) for number in (1, 2, 3)]
            links = [Proxy(node.ports["PROXY"], node.proxy_port) for node in nodes]
            for link in links:
                stack.callback(link.close)
            addresses = [f"127.0.0.1:{link.port}" for link in links]
            query = {"max_events_per_batch": BATCH_ROWS_MAX}
            text = application(addresses)
            pair = services.pair(self.home, text, lease=LEASES["2s"], query=query)
            network = stack.enter_context(Network.of(pair, services.url))
            with _step("start the pair"):
                stack.enter_context(running_pair(pair))
                pair.wait_protected()
            deployment = Deployment(services, receivers, pair, network, links)
            watch = Watch(self.numbers, outputs)
            with self.numbers.flowing():
                for fault in faults:
                    if time.monotonic() > self.until:
                        break
                    wait_until(partial(deployment.is_ready, fault), within=PATIENCE, every=0.2)
                    inflict = partial(deployment.inflict, fault, self.chance)
                    self._one(watch, ENGINE, fault, inflict, deployment.require_no_failure)
            wait_until(partial(deployment.is_ready, "node"), within=PATIENCE, every=0.2)
            self.report.wrong += [
                f"{ENGINE}: {verdict}" for verdict in self._final(watch) if verdict.is_wrong
            ]
            self.report.wrong += [
                f"{node.name} tells of a batch that differs"
                for node in pair.nodes.values()
                if "a batch differs" in node.log_text()
            ]

    def plain(self, faults: Sequence[str]) -> None:
        """Inject ``faults`` while the plain job runs, which promises rows at least once."""
        services, brokers = self.services, self.services.brokers.brokers
        with (
            running_plain(self.home / PLAIN, services, brokers, STREAM, PLAIN) as job,
            reading(brokers, PLAIN) as output,
        ):
            watch = Watch(self.numbers, [output])

            def is_ready() -> bool:
                executors = services.cluster.workers_of()
                return len(executors) == CORES and cluster_parts.is_whole(services)

            def inflict(fault: str) -> Heal:
                if fault != "jvm":
                    return cluster_parts.inflict(fault, services, self.chance)
                job.kill_driver()
                return lambda: None

            with self.numbers.flowing():
                for fault in faults:
                    wait_until(is_ready, within=PATIENCE, every=0.2)
                    self._one(watch, PLAIN, fault, partial(inflict, fault))
            self._final(watch)

    def _one(
        self,
        watch: Watch,
        side: str,
        fault: str,
        inflict: Callable[[], Heal],
        lives: Callable[[], object] = lambda: True,
    ) -> None:
        watch.await_rows(lives)
        watch.judge()
        time.sleep(self.chance.random())  # a fault at any moment of a batch
        began = time.time()
        heal = inflict()
        watch.await_rows(lives)
        outcome = watch.outcome(side, fault, began)
        self.report.add(outcome)
        heal()
        assert side == PLAIN or not (outcome.lost or outcome.twice), outcome

    def _final(self, watch: Watch) -> list[Verdict]:
        verdicts = watch.final()
        for verdict in verdicts:
            print(f"{self.numbers.sent:,} rows sent: {verdict}", flush=True)
        return verdicts


def run_cluster_failovers(
    home: Path,
    faults: Sequence[str],
    plain: Sequence[str],
    report: Report,
    minutes: float = math.inf,
) -> None:
    """Inject ``faults`` into a pair on a cluster for ``minutes``, and then ``plain`` into the plain
    job."""
    until = time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        services = start_services(stack, home, _step)
        stack.enter_context(_kept_logs(home, services))
        stack.enter_context(_measured_memory(services))
        for topic, partitions in ((STREAM, 3), (HOT_TOPIC, 1), (PLAIN, 1)):
            create(services.brokers.brokers, topic, partitions, replicas=3, min_insync_replicas=2)
        with _step("start two receivers"):
            receivers = start_receivers(stack, home, application(services.brokers.brokers))
        numbers = Numbers([one.url for one in receivers], STREAM)
        numbers.send(KEYS)
        run = Run(home, services, numbers, random.Random(report.seed), report, until)
        if faults:
            run.engine(faults, receivers)
        if plain:
            run.plain(plain)


@contextmanager
def _kept_logs(home: Path, services: Services) -> Iterator[None]:
    """Copy the logs of brokers, masters, workers and executors to ``home``."""
    try:
        yield
    finally:
        parts = [*services.cluster.masters, *services.cluster.workers]
        parts += [services.brokers.node(number) for number in (1, 2, 3)]
        for part in parts:
            for log in (*part.directory.glob("*.log"), *part.directory.glob("work/*/*/std*")):
                kept = home / "logs" / log.relative_to(part.directory.parents[1])
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(log, kept)


@contextmanager
def _measured_memory(services: Services) -> Iterator[None]:
    """Print the most memory that all processes have at one time."""
    ended, peak = threading.Event(), [0]

    def measure() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            roots = [psutil.Process(), psutil.Process(services.postgres.pid)]
            found = {one for root in roots for one in root.children(recursive=True)}
            peak[0] = max(peak[0], sum(map(_proportional, {*found, roots[1]})))

    thread = threading.Thread(target=measure, name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print(f"memory of all processes at its peak: {peak[0] / 2**30:.2f} GiB", flush=True)


def _proportional(process: psutil.Process) -> int:
    """Return the memory of a process; what processes share counts once in all."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"{what} ...", flush=True)
    yield


def _table(report: Report, side: str) -> Grid:
    outcomes = [outcome for outcome in report.outcomes if outcome.side == side]
    outputs = list(outcomes[0].gaps) if outcomes else []
    grid = Grid(title=f"{side}: longest time without a row in seconds, median / most")
    for name in ("fault", "runs", *outputs, "lost", "twice"):
        grid.add_column(name, justify="left" if name == "fault" else "right")
    for fault in sorted({outcome.fault for outcome in outcomes}):
        runs = [outcome for outcome in outcomes if outcome.fault == fault]
        gaps = [sorted(run.gaps[output] for run in runs) for output in outputs]
        cells = [f"{median(seconds):.1f} / {seconds[-1]:.1f}" for seconds in gaps]
        wrong = [str(sum(run.lost for run in runs)), str(sum(run.twice for run in runs))]
        grid.add_row(fault, str(len(runs)), *cells, *wrong)
    return grid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="the number of faults")
    parser.add_argument("--plain", type=int, default=20, help="the same of the plain job")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=math.inf, help="no new fault later")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="repeat for more")
    parser.add_argument("--results", type=Path, help="keeps the outcomes; a later run continues")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # all parts end with it
    home = Path(tempfile.mkdtemp(prefix="ha-engine-cluster-"))
    report = Report(given.seed, given.results or home / "results.jsonl")
    print(f"seed {given.seed}, files in {home}", flush=True)
    faults = in_random_order(given.count, given.seed, given.fault or FAULTS)
    plain = in_random_order(given.plain, given.seed, OF_PLAIN)
    faults, plain = faults[report.count(ENGINE) :], plain[report.count(PLAIN) :]
    run_cluster_failovers(home, faults, plain, report, given.minutes)
    for side in (ENGINE, PLAIN):
        Console(width=120).print(_table(report, side))
    print("\n".join(report.wrong) or "each row of the engine is in each output once")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
