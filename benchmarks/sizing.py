"""The costs of a cluster with Kafka, by formulae: records and bytes of the journal, ledger rows,
and the requests of a state in object storage, of which Hadoop's connector sends more.

``tests/test_sizing_model.py`` compares the bytes with records that the engine writes, and
``tests/query/test_files_of_a_batch.py`` the requests with the files of a checkpoint.
``measure_asks`` asks a real broker where a topic ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial

import pyarrow as pa

from benchmarks.report import Result
from ha_engine.connectors.kafka.log import KafkaLog, KafkaLogOptions
from ha_engine.errors import SourceUnavailable
from ha_engine.journal.record import HEADER_BYTES
from ha_engine.plugins import OFFSET_BYTES_MAX, SourcePlace
from ha_engine.types import LOG
from tests.connectors.kafka_broker import admin, kafka, new_topic
from tests.waiting import wait_until

OFFSET_DIGITS, EPOCH_DIGITS, NUMBER_DIGITS = 12, 2, 12
"""The digits of an offset, of a leader's epoch, and of a batch or a sequence."""
TOPIC_BYTES = 76
"""An offset without its partitions: the topic's id, and a name of ten characters."""
RECORD_BYTES, MARK_BYTES, PUBLISHED_BYTES = 110, 55, 55
"""The meta of a record without its offset and its digits, with names of ten characters."""
MONTH_SECONDS = 365.25 / 12 * 86_400
DOLLARS_PER_REQUEST = 5 / 1e6
"""The price of a write or a listing in object storage, as the large providers list it."""
MAINTENANCE_SECONDS = 60
"""Spark lists the files of each store once in this time, and writes a snapshot of it."""
ASKED, PARTITIONS_MEASURED = 20, (24, 1_000, 4_000)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A pair with a cluster, whose ``topics`` of ``partitions`` partitions each are logs.

    The node asks for the ends of a topic again ``ask_seconds`` after it asked: the brokers answer,
    and both nodes write the record. Each of ``queries`` reads all topics. It has a batch every
    ``batch_seconds``, a sink with ``buckets``, and ``stores`` state stores in each of
    ``state_partitions``. A join has four stores, another operator with state one. The oldest kept
    snapshot is ``kept_seconds`` old.
    """

    events_per_second: float = 10_000_000
    event_bytes: int = 200
    topics: int = 10
    partitions: int = 1_000
    ask_seconds: float = 0.2
    queries: int = 1
    batch_seconds: float = 1.0
    buckets: int = 64
    state_partitions: int = 200
    stores: int = 1
    kept_seconds: float = 180.0


def offset_bytes(partitions: int) -> int:
    """The bytes of a log's offset: an offset and an epoch of each partition, each with a comma."""
    return TOPIC_BYTES + partitions * (OFFSET_DIGITS + EPOCH_DIGITS + 2)


def partitions_max() -> int:
    """The partitions of a topic whose offset a record of the journal has room for."""
    return (OFFSET_BYTES_MAX - TOPIC_BYTES) // (OFFSET_DIGITS + EPOCH_DIGITS + 2)


def log_record_bytes(partitions: int) -> int:
    """The bytes of a record of the journal that says where a log ends."""
    return HEADER_BYTES + RECORD_BYTES + NUMBER_DIGITS + offset_bytes(partitions)


def mark_bytes() -> int:
    """The bytes of a mark. It names a record, so it has the same length for any log."""
    return HEADER_BYTES + MARK_BYTES + 2 * NUMBER_DIGITS


def published_bytes() -> int:
    """The bytes of a record that a sink has a batch."""
    return HEADER_BYTES + PUBLISHED_BYTES + NUMBER_DIGITS


def files_per_batch(state_partitions: int, stores: int) -> int:
    """The files that Spark writes for a batch: one for each store, and two for the query."""
    return state_partitions * stores + 2


def figures(of: Deployment) -> Iterator[tuple[str, str, float]]:
    """The name, the unit and the value of each figure."""
    batches = of.queries / of.batch_seconds
    records = of.topics / of.ask_seconds
    writes = batches * files_per_batch(of.state_partitions, of.stores)
    upkeep = 2 * of.queries * of.state_partitions * of.stores / MAINTENANCE_SECONDS
    journal = records * log_record_bytes(of.partitions)
    journal += batches * (mark_bytes() + published_bytes())
    yield "partitions of a topic, at most", "", partitions_max()
    yield "events to the brokers", "MB/s", of.events_per_second * of.event_bytes / 1e6
    yield "records of a log", "bytes", log_record_bytes(of.partitions)
    yield "records of logs", "1/s", records
    yield "marks", "1/s", batches
    yield "a mark", "bytes", mark_bytes()
    yield "journal, on each node", "kB/s", journal / 1e3
    yield (
        "offsets in the memory of a node",
        "MB",
        (records * of.kept_seconds * offset_bytes(of.partitions) / 1e6),
    )
    yield "query.max_events_per_batch, at least", "", of.events_per_second * of.batch_seconds
    yield "ledger rows and connections to PostgreSQL", "1/s", batches * of.buckets
    yield "requests to object storage, at least", "1/s", writes + upkeep
    yield (
        "price of these requests, at least",
        "$/month",
        ((writes + upkeep) * MONTH_SECONDS * DOLLARS_PER_REQUEST),
    )


def add_figures(of: Deployment, result: Result) -> None:
    """Add the figures of a deployment to ``result``."""
    for name, unit, value in figures(of):
        result.extend(name, unit, value)
    shown = ", ".join(f"{one.name}={getattr(of, one.name):g}" for one in fields(of))
    result.notes.append(f"computed for {shown}")


def measure_asks(result: Result) -> None:
    """Add how long a node takes to ask a real broker where all partitions of a topic end."""
    with kafka() as cluster:
        for partitions in PARTITIONS_MEASURED:
            topic = new_topic(cluster.brokers, partitions)
            given = {"brokers": cluster.brokers, "topic": topic, "timeout": "60s"}
            options = KafkaLogOptions.model_validate(given)
            log = KafkaLog(options, SourcePlace("group", "stream", LOG, pa.schema([])))
            # The brokers do not know the leaders of a new topic's partitions at once.
            wait_until(partial(_is_open, log), within=60)
            for _ in range(ASKED):
                began = time.perf_counter()
                log.read(1, 0.0)
                taken = time.perf_counter() - began
                result.extend(f"asking for {partitions:,} partitions", "ms", taken * 1e3)
            log.close()
            client = admin(cluster.brokers)  # deleting it ends its requests
            client.delete_topics([topic])[topic].result()


def _is_open(log: KafkaLog) -> bool:
    with suppress(SourceUnavailable):
        log.open(None)
        log.read(1, 0.0)
        return True
    return False
