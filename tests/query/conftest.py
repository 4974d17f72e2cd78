"""One Spark session for all tests of the query process; each test has a node with its own
journal."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_engine.query.application import StreamApplication, load_application
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoints import CheckpointsOnDisk
from ha_engine.query.host import MemoryKills
from ha_engine.query.jvm import Jvm
from ha_engine.query.link import Address, NodeLink
from ha_engine.query.progress import ProgressListener
from ha_engine.query.reports import Reports
from ha_engine.query.runner import QueryRunner
from ha_engine.query.session import SparkSettings, start_spark
from ha_engine.query.skew import SkewWatch
from tests.query.local_node import LocalNode
from tests.query.patterns.drive import pattern_jars

READ_PARALLELISM = 3
"""Not the number of Spark's threads: the rows of a batch must not depend on that."""

_STORE = "spark.sql.streaming.stateStore"
TIDIES_UP_OFTEN = {f"{_STORE}.maintenanceInterval": "500ms", f"{_STORE}.minDeltasForSnapshot": "2"}
"""A small interval, so that checkpoints have full states too, and not only deltas."""

APPLICATION = """
name: test
streams:
  events:
    schema: {at: timestamp not null, key: string not null, value: int, ratio: double, text: string}
    watermark: {column: at, delay: 0s}
    system_columns: [_received_at, _event_id]
  others:
    schema: {at: timestamp not null, key: string not null, weight: double}
    watermark: {column: at, delay: 0s}
queries:
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("spark")
    settings = SparkSettings(
        master="local[2]",
        heap=1 << 30,
        scratch=home / "scratch",
        spark=TIDIES_UP_OFTEN,
        jars=pattern_jars(home),
    )
    session = start_spark(settings)
    yield session
    session.stop()


@pytest.fixture
def rocksdb(spark: Any) -> Iterator[None]:
    """Let queries that start in the test keep their state in RocksDB."""
    key = "spark.sql.streaming.stateStore.providerClass"
    former = spark.conf.get(key)
    spark.conf.set(key, former.replace("HDFSBacked", "RocksDB"))
    yield
    spark.conf.set(key, former)


@pytest.fixture
def node() -> Iterator[LocalNode]:
    directory = Path(tempfile.mkdtemp(prefix="ha-q-"))  # a short path, since a Unix socket is in it
    local = LocalNode(directory)
    local.start()
    yield local
    local.stop()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def application(node: LocalNode) -> Callable[[str], StreamApplication]:
    """Return an application of the test's queries, in YAML, over the streams above."""

    def write(queries: str) -> StreamApplication:
        path = node.directory / "application.yaml"
        path.write_text(APPLICATION + queries)
        return load_application(path)

    return write


@pytest.fixture
def ended() -> list[BaseException]:
    """The errors with which the runner asks the process to end."""
    return []


@pytest.fixture
def runner(
    spark: Any, node: LocalNode, ended: list[BaseException]
) -> Iterator[Callable[[StreamApplication], QueryRunner]]:
    """Return a runner in this process, over the shared session."""
    made: list[QueryRunner] = []
    listeners: list[ProgressListener] = []

    def make(application: StreamApplication, file: str = "application.yaml") -> QueryRunner:
        link = NodeLink(Address(str(node.socket), node.incarnation))
        reports = Reports(link, ended.append)
        listeners.append(ProgressListener(reports, lambda: None, SkewWatch(spark).of))
        spark.streams.addListener(listeners[-1])
        made.append(
            QueryRunner(
                spark,
                ApplicationVersions(application.path.parent / file),
                link,
                reports,
                node.outbox_directory,
                CheckpointsOnDisk(node.checkpoints),
                ended.append,
                Jvm(spark),
                MemoryKills(),
                read_parallelism=READ_PARALLELISM,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.halt_all()
    for listener in listeners:
        spark.streams.removeListener(listener)
