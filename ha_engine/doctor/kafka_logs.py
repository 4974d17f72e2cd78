"""Check the topics in which streams keep their events, and what Spark needs to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from ha_engine.config import Config
from ha_engine.config.sections import SnapshotConfig
from ha_engine.connectors.kafka.cluster import Cluster
from ha_engine.connectors.kafka.errors import SOURCE
from ha_engine.doctor.finding import Finding, failed, ok, warning
from ha_engine.query.application import StreamSpec
from ha_engine.query.plugin_sections import log_options

REPLICAS, REPLICAS_MIN = 3, 2
"""With three replicas, of which two must have an event, a broker may fail without a loss."""
_CONNECTOR = "spark-sql-kafka"
_FOREVER = -1
_UNITS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a topic that decide whether its events last. A duration or a size of -1 has
    no limit; ``retention_bytes`` is that of a partition."""

    brokers: int
    partitions: int
    replicas: int
    in_sync_min: int
    unclean: bool
    cleanup: str
    retention_ms: int
    retention_bytes: int
    by_producers_time: bool


def log(config: Config, stream: StreamSpec, directory: Path) -> Finding:
    """Whether the topic of the log of ``stream`` keeps the events as long as nodes need them.

    Raises ConfigError, SourceRefused, SourceUnavailable.
    """
    assert stream.log is not None, "the caller has chosen the streams with a log"
    options = log_options(stream.name, stream.log, directory)
    cluster = Cluster(options, SOURCE)
    topic, found = cluster.topic(options.topic), cluster.settings_of(options.topic)
    settings = Settings(
        brokers=cluster.brokers(),
        partitions=topic.partitions,
        replicas=topic.replicas,
        in_sync_min=int(found["min.insync.replicas"]),
        unclean=found["unclean.leader.election.enable"] == "true",
        cleanup=found["cleanup.policy"],
        retention_ms=int(found["retention.ms"]),
        retention_bytes=int(found["retention.bytes"]),
        by_producers_time=found["message.timestamp.type"] == "CreateTime",
    )
    return judged(options.topic, settings, config.snapshot)


def judged(topic: str, found: Settings, snapshot: SnapshotConfig) -> Finding:
    """The finding for a topic, whose events must outlast the snapshots of ``snapshot``."""
    problems = [*_of_replicas(found), *_of_deletion(found, snapshot)]
    if problems:
        worst = failed if any(is_failure for is_failure, _, _ in problems) else warning
        text = "; ".join(text for _, text, _ in problems)
        return worst(f"topic {topic}: {text}", "; ".join(remedy for _, _, remedy in problems))
    return ok(
        f"topic {topic} has {found.partitions} partitions with {found.replicas} replicas, and "
        f"keeps events {_kept(found.retention_ms)}"
    )


_Problem = tuple[bool, str, str]
"""Whether the topic is unusable, what is wrong, and what to do."""


def _of_replicas(found: Settings) -> Iterator[_Problem]:
    alone = found.brokers == 1
    if found.replicas < REPLICAS:
        yield (
            found.replicas == 1 and not alone,
            f"it has {found.replicas} replicas on {found.brokers} brokers",
            f"give it {REPLICAS} replicas (kafka-reassign-partitions.sh), on as many brokers",
        )
    if found.in_sync_min < REPLICAS_MIN:
        yield (
            not alone,
            f"min.insync.replicas is {found.in_sync_min}, so one lost broker may lose events",
            f"set min.insync.replicas to {REPLICAS_MIN}, and send with acks=all",
        )
    if found.unclean:
        yield (
            True,
            "unclean.leader.election.enable is true, so Kafka may drop events that it has stored",
            "set unclean.leader.election.enable to false",
        )


def _of_deletion(found: Settings, snapshot: SnapshotConfig) -> Iterator[_Problem]:
    if "compact" in found.cleanup:
        yield (
            True,
            f"cleanup.policy is {found.cleanup}, so Kafka removes events with equal keys",
            "set cleanup.policy to delete",
        )
    if "delete" not in found.cleanup:
        return
    oldest = snapshot.interval * (snapshot.revisions_to_keep + 1)
    needed = f"the oldest snapshot is up to {_time(oldest)} old"
    if not snapshot.interval:
        needed = "snapshot.interval is 0s, so the age of the oldest snapshot has no limit"
    is_short = not snapshot.interval or found.retention_ms / 1000 < oldest
    if found.retention_ms != _FOREVER and is_short:
        by_time = ", by the time that the producer wrote" if found.by_producers_time else ""
        yield (
            False,
            f"it keeps events {_kept(found.retention_ms)}{by_time}, but {needed}",
            "set retention.ms to a time that covers the oldest snapshot and any outage",
        )
    if found.retention_bytes != _FOREVER:
        yield (
            False,
            f"it keeps {decimal(found.retention_bytes)} of each partition, which must hold all "
            f"events since the oldest snapshot, and {needed}",
            "set retention.bytes to -1, or to a size that covers the oldest snapshot",
        )


def _kept(retention_ms: int) -> str:
    return "for ever" if retention_ms == _FOREVER else f"for {_time(retention_ms / 1000)}"


def _time(seconds: float) -> str:
    fitting = (one for one, size in _UNITS.items() if seconds >= 2 * size)
    unit = next(fitting, "seconds")
    return f"{seconds / _UNITS[unit]:.3g} {unit}"


def jars(spark: Mapping[str, str]) -> Finding:
    """Whether ``query.spark`` names Spark's Kafka source, which is no part of PySpark."""
    for setting in ("spark.jars", "spark.jars.packages"):
        if _CONNECTOR in spark.get(setting, ""):
            return ok(f"query.spark names {_CONNECTOR} in {setting}")
    return failed(
        f"query.spark names no {_CONNECTOR}, with which Spark reads Kafka",
        f"add org.apache.spark:{_CONNECTOR}-0-10_2.13 of Spark's version to spark.jars.packages, "
        "or its jars to spark.jars",
    )
