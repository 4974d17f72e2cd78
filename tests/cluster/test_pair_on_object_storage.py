"""A pair on a cluster whose checkpoints are on a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ha_engine.jvm import JAR
from ha_engine.jvm.build import build
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.query.object_checkpoints import Bucket
from tests.cluster import s3a
from tests.cluster.nodes import pair_on
from tests.cluster.standalone import running_cluster
from tests.cluster.takeovers import fail_back, fail_over
from tests.connectors.s3_broker import S3Broker, running_broker
from tests.e2e.flights import Flights
from tests.e2e.node_under_test import SPARK_SECONDS
from tests.e2e.test_restore import snapshot_now
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [
    needs("javac"),
    pytest.mark.nightly(
        "six JVMs and a server of S3 take two minutes; snapshot/test_object_storage.py has the "
        "checkpoints and snapshots without Spark"
    ),
    pytest.mark.spark,
]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Broker]:
    for name, value in s3a.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with running_broker() as broker:
        yield broker


@pytest.fixture
def warm(broker: S3Broker, tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Flights]:
    """A pair in which only the active runs the queries."""
    build(JAR)
    spark = s3a.settings(broker)
    options = {"query": {"spark": spark}, "execution": {"checkpoint": "s3a://events/ha"}}
    with (
        running_cluster(workers=2, cores=2, memory="1200m") as cluster,
        pair_on(cluster, tmp_path, postgres, standby="warm", **options) as flights,
    ):
        yield flights


def test_warm_queries_continue_on_object_storage_after_the_active_was_killed(
    warm: Flights, broker: S3Broker
) -> None:
    warm.send(20_000)
    warm.require_equal()
    first, second = fail_over(warm, 10_000)
    snapshot_now(second)
    fail_back(warm, first, second, 5_000)
    # Of the folders of former drivers nothing is left, also of what Hadoop wrote there.
    bucket = Bucket("s3a://events/ha/test", s3a.settings(broker))
    homes = [f"{node}/{query}" for node in warm.pair.nodes for query in ("alerts", "delays")]
    wait_until(lambda: all(len(bucket.folders(home)) == 1 for home in homes), within=SPARK_SECONDS)
