"""A process that claims a sink and delivers batches until it is killed: brokers, topic, epoch, and
the number of batches as arguments. It prints a line after the claim and after each batch."""

from __future__ import annotations

import json
import sys
import time

from ha_engine.connectors.kafka.sink import KafkaSink
from ha_engine.plugins import Claim, Messages, OutputBatch, SinkPlace

ROWS = 50
"""The rows of each batch."""
SECONDS = 120.0


def sink_of(brokers: str, topic: str, **options: object) -> KafkaSink:
    """The sink of the tests, with a ledger topic of its own."""
    ledger = {"topic": f"{topic}-ledger", "replication": 1, "min_insync_replicas": 1}
    read = {"brokers": brokers.split(","), "topic": topic, "timeout": "60s", "ledger": ledger}
    place = SinkPlace("group", "query", "sink", lambda batch, reason, rows: None)
    return KafkaSink(KafkaSink.Options.model_validate(read | options), place)


def claim_of(epoch: int, group_id: str = "group-id", seconds: float = SECONDS) -> Claim:
    """A claim as the engine makes it."""
    until = time.monotonic() + seconds
    return Claim(epoch, 0, group_id, lambda: until - time.monotonic())


def batch_of(number: int, rows: int = ROWS, **attributes: list[object]) -> OutputBatch:
    """Batch ``number``, whose rows no other batch has."""
    values = [json.dumps([number, row]).encode() for row in range(rows)]
    until = time.monotonic() + SECONDS
    named = {name.replace("_", "."): values for name, values in attributes.items()}
    return OutputBatch(
        number,
        rows,
        f"group/query/sink/{number}",
        lambda: None,
        lambda: until - time.monotonic(),
        lambda: Messages(values, named),
    )


def _main(brokers: str, topic: str, epoch: str, batches: str) -> None:
    sink = sink_of(brokers, topic)
    through = sink.claim(claim_of(int(epoch)))
    sys.stdout.write(f"claimed {through}\n")
    sys.stdout.flush()
    for number in range(through + 1, int(batches) + 1):
        sink.deliver(batch_of(number))
        sys.stdout.write(f"delivered {number}\n")
        sys.stdout.flush()
    sink.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
