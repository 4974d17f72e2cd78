"""The findings of ``ha-engine cluster check`` about the topics of logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ha_engine.config.sections import SnapshotConfig
from ha_engine.doctor.finding import State
from ha_engine.doctor.kafka_logs import Settings, jars, judged

SNAPSHOT = SnapshotConfig(interval="60s", revisions_to_keep=2)
SAFE = Settings(
    brokers=3,
    partitions=24,
    replicas=3,
    in_sync_min=2,
    unclean=False,
    cleanup="delete",
    retention_ms=7 * 24 * 3600 * 1000,
    retention_bytes=-1,
    by_producers_time=True,
)


def test_a_safe_topic_passes() -> None:
    finding = judged("flights", SAFE, SNAPSHOT)
    assert finding.state is State.OK
    assert finding.text == (
        "topic flights has 24 partitions with 3 replicas, and keeps events for 7 days"
    )


@pytest.mark.parametrize(
    ("change", "state", "text"),
    [
        ({"replicas": 2}, State.WARNING, "2 replicas on 3 brokers"),
        ({"replicas": 1}, State.FAILED, "1 replicas on 3 brokers"),
        ({"replicas": 1, "brokers": 1}, State.WARNING, "1 replicas on 1 brokers"),
        ({"in_sync_min": 1}, State.FAILED, "min.insync.replicas is 1"),
        ({"unclean": True}, State.FAILED, "unclean.leader.election.enable is true"),
        ({"cleanup": "compact"}, State.FAILED, "cleanup.policy is compact"),
        ({"cleanup": "compact,delete"}, State.FAILED, "cleanup.policy is compact,delete"),
        ({"retention_ms": 179_000}, State.WARNING, "for 2.98 minutes, by the time that"),
        ({"retention_ms": 60_000}, State.WARNING, "the oldest snapshot is up to 3 minutes old"),
        ({"retention_bytes": 1 << 20}, State.WARNING, "1.0 MB of each partition"),
    ],
)
def test_a_setting_that_may_lose_events_is_named(
    change: dict[str, Any], state: State, text: str
) -> None:
    finding = judged("flights", replace(SAFE, **change), SNAPSHOT)
    assert finding.state is state
    assert text in finding.text
    assert finding.remedy


def test_the_worst_of_several_settings_decides() -> None:
    finding = judged("flights", replace(SAFE, unclean=True, retention_bytes=9), SNAPSHOT)
    assert finding.state is State.FAILED
    assert finding.text.count(";") == 1


@pytest.mark.parametrize("retention_ms", [180_000, -1])
def test_a_retention_that_covers_the_oldest_snapshot_passes(retention_ms: int) -> None:
    finding = judged("flights", replace(SAFE, retention_ms=retention_ms), SNAPSHOT)
    assert finding.state is State.OK


def test_snapshots_on_request_only_have_no_greatest_age() -> None:
    finding = judged("flights", SAFE, SnapshotConfig(interval="0s"))
    assert finding.state is State.WARNING
    assert "has no limit" in finding.text


def test_sparks_source_must_be_named() -> None:
    packages = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
    assert jars({"spark.jars.packages": packages}).state is State.OK
    assert jars({"spark.jars": "/opt/spark-sql-kafka-0-10.jar"}).state is State.OK
    assert jars({"spark.jars": "/opt/mine.jar"}).state is State.FAILED
