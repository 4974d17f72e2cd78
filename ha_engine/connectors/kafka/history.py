"""Require that a partition still has the records before an offset (KIP-320).

A replica without the last records may become leader, if the topic permits an unclean election or
the cluster lost disks. Then the log ends earlier, and grows again with other records. The offsets
alone do not show that once the log is as long as before. The new leader has a higher epoch, and
knows where the log of each earlier epoch ends: before the offset, if records are gone.

librdkafka asks the leader that question only for a consumer. So a consumer seeks to the offset and
its epoch, and waits for a record or the end of the partition.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from ha_engine.connectors.kafka.errors import SOURCE, LastError
from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.connectors.kafka.options import ClusterOptions, settings
from ha_engine.connectors.library import library
from ha_engine.errors import SourceRefused, SourceUnavailable

_SETTINGS = {
    # librdkafka demands the name of a group. The consumer neither joins it nor commits.
    "group.id": "ha-engine",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "max.partition.fetch.bytes": 1,  # one batch of records; the broker sends it whole
    "queued.max.messages.kbytes": 1,
    "fetch.wait.max.ms": 100,
}


def require_history(
    options: ClusterOptions, positions: Positions, partitions: Collection[int]
) -> None:
    """Raise SourceRefused if the log of one of ``partitions`` has changed before its position, and
    SourceUnavailable if that cannot be known now. Each must have a known epoch."""
    kafka = library("confluent_kafka", "kafka", SourceRefused)
    last = LastError()
    try:
        consumer = kafka.Consumer(settings(options) | _SETTINGS | {"error_cb": last.note})
    except kafka.KafkaException as error:
        raise SOURCE.of_options(error, options) from error
    try:
        places = [
            kafka.TopicPartition(
                positions.topic,
                number,
                positions.next[number],
                leader_epoch=positions.epochs[number],
            )
            for number in sorted(partitions)
        ]
        consumer.assign(places)
        for place in places:
            # Only ``seek`` lets librdkafka compare the epoch with the leader's history.
            consumer.seek(place)
        _await_all(consumer, options, positions, set(partitions), last)
    except kafka.KafkaException as error:
        raise SOURCE.of(error, f"{options.where} cannot be read") from error
    finally:
        consumer.close()


def _await_all(
    consumer: Any, options: ClusterOptions, positions: Positions, left: set[int], last: LastError
) -> None:
    until = time.monotonic() + options.timeout
    while left:
        message = consumer.poll(max(0.0, until - time.monotonic()))
        if message is None:
            if last.error is not None:
                raise SOURCE.of(last.error, f"{options.where} cannot be read")
            raise SourceUnavailable(
                f"{options.where}, partition {min(left)}: the leader does not answer whether the "
                f"log is the same before offset {positions.next[min(left)]}"
            )
        _note(message, options, positions)
        left.discard(message.partition())


def _note(message: Any, options: ClusterOptions, positions: Positions) -> None:
    error, partition = message.error(), message.partition()
    match error.name() if error is not None else None:
        case None | "_PARTITION_EOF" | "GROUP_AUTHORIZATION_FAILED":
            pass  # the consumer uses no group
        case "_AUTO_OFFSET_RESET":
            raise SourceRefused(
                f"{options.where}, partition {partition}, offset {positions.next[partition]}: the "
                f"log has changed before this offset: {error.str()}. Records were lost, for "
                "example when a replica without them became leader (unclean leader election); "
                "give the stream a new name"
            )
        case _:
            raise SOURCE.of(error, f"{options.where} cannot be read")
