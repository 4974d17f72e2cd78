"""Spark's Kafka source at marks: each batch has exactly the committed records of its mark."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec

from ha_engine.jvm.build import build
from tests.cluster.committed_records import Groups, Records, add
from tests.cluster.marks import Ends, Marks, serving
from tests.cluster.standalone import Cluster, executor_settings, running_cluster
from tests.connectors.kafka_broker import admin, create, kafka, new_topic
from tests.connectors.kafka_jars import SPARK, fetch, needs_kafka, spark_jars
from tests.programs import needs
from tests.waiting import wait_ended, wait_until

pytestmark = [
    needs_kafka(),
    needs("javac"),
    pytest.mark.nightly("a driver on a cluster takes ten seconds to start; no stream uses it yet"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
BATCH_SECONDS = 60.0


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[str]]:
    with kafka() as cluster:
        yield cluster.brokers


@pytest.fixture(scope="module")
def spark_cluster() -> Iterator[Cluster]:
    with running_cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fetch(SPARK)
    jar = tmp_path_factory.mktemp("jar") / "marked-kafka.jar"
    build(jar)
    return jar


class Driver:
    """A driver process, with the files that it keeps in ``home``."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        self.home, self._settings = home, settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.home / "stop").unlink(missing_ok=True)
        file = self.home / "settings.json"
        file.write_text(json.dumps(self._settings | {"home": str(self.home)}))
        command = [sys.executable, "-m", "tests.cluster.marked_job", str(file)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def stop(self) -> None:
        assert self._process is not None
        (self.home / "stop").touch()
        assert wait_ended(self._process, within=START_SECONDS) == 0, self.log()

    def kill(self) -> None:
        """End the driver, its JVM and its workers at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def ended(self) -> str:
        """Wait until the driver fails, and return its log."""
        assert self._process is not None
        assert wait_ended(self._process, within=START_SECONDS) != 0
        return self.log()

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def await_batch(self, query: str, number: int, attempt: int = 0) -> None:
        file = self.home / query / f"{number}-{attempt}.json"
        self._await(file, START_SECONDS)

    def hold(self, query: str, what: str | int) -> None:
        (self.home / query).mkdir(exist_ok=True)
        (self.home / query / f"hold-{what}").touch()

    def await_inside(self, query: str, what: str | int) -> None:
        self._await(self.home / query / f"inside-{what}", START_SECONDS)

    def release(self, query: str, what: str | int) -> None:
        (self.home / query / f"hold-{what}").unlink()

    def _await(self, file: Path, seconds: float) -> None:
        def is_there() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            return file.exists()

        wait_until(is_there, within=seconds)

    def batches(self, query: str) -> dict[int, list[list[str]]]:
        """Return the rows of each batch, the same in each attempt."""
        found = dict[int, list[list[str]]]()
        for file in sorted((self.home / query).glob("*-*.json")):
            rows = json.loads(file.read_text())
            assert found.setdefault(int(file.name.partition("-")[0]), rows) == rows, file
        return found

    def offsets(self, query: str) -> dict[int, list[str]]:
        """Return the offset of each source, by batch, from Spark's log of offsets."""
        log = self.home / query / "checkpoint" / "offsets"
        files = [file for file in log.iterdir() if file.name.isdigit()]
        return {int(file.name): file.read_text().splitlines()[2:] for file in files}

    def roll_back(self, query: str, number: int) -> None:
        """Make Spark forget the batches after ``number``."""
        for log in ("offsets", "commits"):
            for file in (self.home / query / "checkpoint" / log).iterdir():
                found = re.fullmatch(r"\.?(\d+)(\.crc)?", file.name)
                if found is not None and int(found[1]) > number:
                    file.unlink()


class Bench:
    """Topics with records, marks over them, and drivers that read at these marks."""

    def __init__(
        self, stack: ExitStack, brokers: list[str], spark_cluster: Cluster, jar: Path
    ) -> None:
        self._stack, self.brokers = stack, brokers
        self._cluster, self._jar = spark_cluster, jar
        self.home = Path(tempfile.mkdtemp(prefix="marked-"))
        stack.callback(shutil.rmtree, self.home, ignore_errors=True)
        topics = {new_topic(brokers, partitions): partitions for partitions in (4, 2)}
        self.records = Records(topics)
        start: Ends = {topic: dict.fromkeys(range(count), 0) for topic, count in topics.items()}
        self.marks = Marks(start)
        self.socket = self.home / "node"
        stack.enter_context(serving(self.marks, self.socket))
        self.chance = random.Random(1)

    @property
    def topics(self) -> list[str]:
        return list(self.records.topics)

    def write(self, transactions: int = 12) -> None:
        self.records.write(self.brokers, transactions, self.chance)

    def ends(self) -> Ends:
        """Return where the topics end now."""
        return ends_of(self.brokers, self.records.topics)

    def mark(self, count: int) -> None:
        """Add marks up to the present ends. They also cut transactions, and grow unequally."""
        last, ends = self.marks[self.marks.last], self.ends()
        for step in range(1, count + 1):
            share = {topic: self.chance.random() for topic in self.topics}
            last = {
                topic: {
                    number: end
                    if step == count
                    else last[topic][number] + round((end - last[topic][number]) * share[topic])
                    for number, end in ends[topic].items()
                }
                for topic in self.topics
            }
            self.marks.add(last)

    def driver(
        self,
        *,
        cores: int = 2,
        queries: tuple[str, ...] = ("rows", "groups"),
        stalls: bool = False,
        options: dict[str, str] | None = None,
    ) -> Driver:
        home = Path(tempfile.mkdtemp(prefix="driver-", dir=self.home))
        spark = {
            "spark.cores.max": str(cores),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.jars": spark_jars(),
            # Only the driver gets the jar: the executors need no class of it.
            "spark.driver.extraClassPath": str(self._jar),
            **executor_settings(Path(sys.executable), [ROOT]),
        }
        settings = {
            "master": self._cluster.url,
            "spark": spark,
            "brokers": ",".join(self.brokers),
            "topics": self.topics,
            "socket": str(self.socket),
            "queries": queries,
            "stalls": stalls,
            "options": options or {},
        }
        driver = Driver(home, settings)
        self._stack.callback(driver.kill)
        return driver

    def require(self, driver: Driver, query: str, last: int | None = None) -> None:
        """Require that each batch up to mark ``last`` has exactly the records of its mark."""
        batches, groups = driver.batches(query), Groups()
        last = self.marks.last if last is None else last
        assert sorted(batches) == list(range(last))
        for number in range(last):
            records = self.records.within(self.marks[number], self.marks[number + 1])
            if query == "rows":
                places = [[one.topic, str(one.partition), str(one.offset)] for one in records]
                assert batches[number] == sorted(places), number
            else:
                changed = add(groups, records.values())
                assert batches[number] == sorted(map(_row, changed.items())), number

    def require_marks(self, driver: Driver, query: str) -> None:
        """Require that all sources of each batch read to the same mark, which Spark has logged."""
        for number, sources in driver.offsets(query).items():
            ends, mark = self.marks[number + 1], {"mark": number + 1, "sequence": number + 1}
            wanted = [mark | {"at": {topic: _text(ends[topic])}} for topic in self.topics]
            assert [json.loads(one) for one in sources] == wanted


def _row(group: tuple[tuple[str, str], tuple[int, str]]) -> list[str]:
    (key, window), (events, total) = group
    return [key, window.replace("T", " ").removesuffix("+00:00"), str(events), total]


def _text(ends: dict[int, int]) -> dict[str, int]:
    return {str(number): end for number, end in ends.items()}


def ends_of(brokers: list[str], topics: dict[str, int]) -> Ends:
    """Return the ends of committed records."""

    asked = {
        TopicPartition(topic, number): OffsetSpec.latest()
        for topic, count in topics.items()
        for number in range(count)
    }
    client = admin(brokers)
    answers = client.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    found: Ends = {topic: {} for topic in topics}
    for part, answer in answers.items():
        found[part.topic][part.partition] = answer.result().offset
    return found


@pytest.fixture
def bench(brokers: list[str], spark_cluster: Cluster, jar: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack, brokers, spark_cluster, jar)


def test_two_drivers_give_exactly_the_records_of_each_mark_from_both_sources(bench: Bench) -> None:
    bench.write(30)
    bench.mark(5)
    one, other = bench.driver(cores=1), bench.driver(cores=1)
    for driver in (one, other):
        driver.start()
    for driver in (one, other):
        driver.await_batch("groups", 4)
        driver.await_batch("rows", 4)
    bench.marks.add(bench.marks[bench.marks.last])  # a mark without a record is a batch too
    bench.write()
    bench.mark(2)
    for driver in (one, other):
        for query in ("rows", "groups"):
            driver.await_batch(query, bench.marks.last - 1)
            bench.require(driver, query)
            bench.require_marks(driver, query)
        driver.stop()
    assert one.batches("groups") == other.batches("groups")


def test_batches_are_the_same_after_a_restart_a_kill_and_a_rollback(bench: Bench) -> None:
    bench.write(30)
    bench.mark(3)
    driver = bench.driver()
    driver.start()
    for query in ("rows", "groups"):
        driver.await_batch(query, 2)
    driver.stop()

    bench.mark(2)
    bench.write()
    driver.hold("groups", 4)
    driver.start()
    driver.await_inside("groups", 4)
    driver.kill()
    driver.release("groups", 4)
    bench.mark(2)
    driver.start()
    for query in ("rows", "groups"):
        driver.await_batch(query, bench.marks.last - 1)
        bench.require(driver, query)
    driver.stop()

    for query, number in (("rows", -1), ("groups", 1)):
        driver.roll_back(query, number)
    driver.start()
    for query in ("rows", "groups"):
        driver.await_batch(query, bench.marks.last - 1, attempt=1)
        bench.require(driver, query)
        bench.require_marks(driver, query)
    driver.stop()


def test_a_batch_is_the_same_after_its_executors_were_killed(
    bench: Bench, spark_cluster: Cluster
) -> None:
    bench.write(20)
    bench.mark(1)
    driver = bench.driver(queries=("rows",), stalls=True)
    driver.start()
    driver.await_batch("rows", 0)
    driver.hold("rows", "task")
    bench.write()
    bench.mark(2)
    driver.await_inside("rows", "task")
    for worker in spark_cluster.workers:
        for executor in worker.executors():
            executor.kill()
    driver.release("rows", "task")
    driver.await_batch("rows", 2)
    bench.require(driver, "rows")
    driver.stop()


def test_a_batch_whose_records_were_deleted_fails_and_names_the_partition(bench: Bench) -> None:
    bench.write(20)
    bench.mark(2)
    topic = bench.topics[0]
    behind = TopicPartition(topic, 2, bench.marks[1][topic][2] + 1)
    client = admin(bench.brokers)
    client.delete_records([behind])[behind].result()
    driver = bench.driver(queries=("rows",))
    driver.start()
    log = driver.ended()
    assert f"{topic}-2" in log
    assert "data may have been lost" in log
    assert driver.batches("rows") == {}


def _create_anew(bench: Bench, topic: str) -> None:
    client = admin(bench.brokers)
    client.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in client.list_topics().topics)
    create(bench.brokers, topic, 4)


def test_a_topic_that_was_created_anew_fails_where_it_is_shorter(bench: Bench) -> None:
    bench.write(20)
    bench.mark(2)
    topic, others = bench.topics
    driver = bench.driver(queries=("rows",))
    driver.start()
    driver.await_batch("rows", 1)
    _create_anew(bench, topic)
    behind = {number: end + 5 for number, end in bench.marks[2][topic].items()}
    bench.marks.add({topic: behind, others: bench.marks[2][others]})
    assert f"{topic}-" in driver.ended()
    assert sorted(driver.batches("rows")) == [0, 1]


def test_a_topic_that_was_created_anew_and_is_longer_is_read_so_the_node_must_compare_ids(
    bench: Bench,
) -> None:
    bench.write(10)
    bench.mark(1)
    topic, others = bench.topics
    driver = bench.driver(queries=("rows",))
    driver.start()
    driver.await_batch("rows", 0)
    _create_anew(bench, topic)
    bench.records.committed.clear()
    bench.write(60)
    ends = bench.ends()
    assert all(end > bench.marks[1][topic][number] for number, end in ends[topic].items())
    bench.marks.add({topic: ends[topic], others: bench.marks[1][others]})
    driver.await_batch("rows", 1)
    assert driver.batches("rows")[1] != []
    driver.stop()


def test_options_that_choose_offsets_are_refused(bench: Bench) -> None:
    driver = bench.driver(queries=("rows",), options={"startingOffsets": "latest"})
    driver.start()
    assert "the marks decide what is read: remove startingoffsets" in driver.ended()


def test_a_node_that_ends_ends_the_query(bench: Bench) -> None:
    bench.write(5)
    bench.mark(1)
    driver = bench.driver(queries=("rows",))
    driver.start()
    driver.await_batch("rows", 0)
    bench.marks.close()
    assert "the node ended before it answered" in driver.ended()


def test_a_partition_that_was_added_is_read_from_its_start(bench: Bench) -> None:
    bench.write(10)
    bench.mark(1)
    driver = bench.driver(queries=("rows",))
    driver.start()
    driver.await_batch("rows", 0)
    topic = bench.topics[0]
    client = admin(bench.brokers)
    client.create_partitions([NewPartitions(topic, 5)])[topic].result()
    wait_until(lambda: len(client.list_topics(topic).topics[topic].partitions) == 5)
    bench.records.topics[topic] = 5
    bench.write()
    bench.marks.add(bench.ends())
    driver.await_batch("rows", 1)
    bench.require(driver, "rows")
    driver.stop()
