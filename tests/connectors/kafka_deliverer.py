"""A process that claims a sink and delivers batches until it ends or is killed: brokers, topic,
epoch, and the number of batches as arguments. It prints a line after each step.

With a fifth argument n it kills itself at the nth moment: before the first call of the producer,
after it, before the second call, and so on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import confluent_kafka

from ha_engine.connectors.kafka.sink import KafkaSink
from ha_engine.plugins import Claim, SinkPlace
from tests.connectors.deliveries import batch_of, rows

ROWS = 50
"""The rows of each batch."""
STEP_ROWS = 2
"""The rows of each batch of a process that kills itself."""
STEPS = 2 * (4 + 3 * (3 + STEP_ROWS))
"""The moments of a claim of four calls and of three batches, each with three calls and one more
for each row."""
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


class _DyingProducer(confluent_kafka.Producer):  # type: ignore[misc]  # untyped
    """A producer whose process dies at the moment ``at``."""

    at = 0

    def init_transactions(self, *words: Any, **named: Any) -> None:
        self._around(super().init_transactions, words, named)

    def begin_transaction(self, *words: Any, **named: Any) -> None:
        self._around(super().begin_transaction, words, named)

    def produce(self, *words: Any, **named: Any) -> None:
        self._around(super().produce, words, named)

    def commit_transaction(self, *words: Any, **named: Any) -> None:
        self._around(super().commit_transaction, words, named)

    def _around(self, call: Any, words: Any, named: Any) -> None:
        self._moment()
        call(*words, **named)
        self._moment()

    def _moment(self) -> None:
        type(self).at -= 1
        if self.at == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _main(brokers: str, topic: str, epoch: str, batches: str, moment: str = "") -> None:
    count = ROWS
    if moment:
        count, _DyingProducer.at = STEP_ROWS, int(moment)
        confluent_kafka.Producer = _DyingProducer
    sink = sink_of(brokers, topic)
    through = sink.claim(claim_of(int(epoch)))
    sys.stdout.write(f"claimed {through}\n")
    sys.stdout.flush()
    for number in range(through + 1, int(batches) + 1):
        sink.deliver(batch_of(number, rows(number, count), SECONDS))
        sys.stdout.write(f"delivered {number}\n")
        sys.stdout.flush()
    sink.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
