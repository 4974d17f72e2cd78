"""``ha-engine cluster check`` reads the settings of a topic from a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ha_engine.config import Config
from ha_engine.doctor.finding import Finding, State
from ha_engine.doctor.kafka_logs import log
from ha_engine.errors import SourceRefused
from ha_engine.query.application import load_application
from tests.connectors.kafka_broker import new_topic
from tests.connectors.kafka_jars import needs_kafka

pytestmark = needs_kafka()


def checked(brokers: list[str], topic: str, home: Path) -> Finding:
    options = {"type": "kafka", "brokers": brokers, "topic": topic, "timeout": "60s"}
    stream = {"schema": {"id": "int"}, "log": options}
    tree = {"name": "a", "streams": {"s": stream}, "queries": {"q": {"sql": "SELECT id FROM s"}}}
    (home / "app.yaml").write_text(json.dumps(tree))
    application = load_application(home / "app.yaml")
    return log(Config(), application.streams["s"], application.path.parent)


def test_a_topic_of_a_single_broker_warns_of_its_replicas_only(
    brokers: list[str], tmp_path: Path
) -> None:
    topic = new_topic(brokers, min_insync_replicas=2, retention_ms=3_600_000)
    finding = checked(brokers, topic, tmp_path)
    assert finding.state is State.WARNING
    assert finding.text == f"topic {topic}: it has 1 replicas on 1 brokers"


def test_the_settings_of_the_topic_are_named(brokers: list[str], tmp_path: Path) -> None:
    topic = new_topic(
        brokers,
        partitions=2,
        min_insync_replicas=1,
        unclean_leader_election_enable="true",
        cleanup_policy="compact,delete",
        retention_ms=60_000,
        retention_bytes=1 << 30,
    )
    finding = checked(brokers, topic, tmp_path)
    assert finding.state is State.FAILED
    for text in (
        "min.insync.replicas is 1",
        "unclean.leader.election.enable is true",
        "cleanup.policy is compact,delete",
        "it keeps events for 60 seconds, by the time that the producer wrote",
        "it keeps 1.1 GB of each partition",
    ):
        assert text in finding.text


def test_a_topic_that_is_missing_is_refused(brokers: list[str], tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="no-such-topic"):
        checked(brokers, "no-such-topic", tmp_path)
