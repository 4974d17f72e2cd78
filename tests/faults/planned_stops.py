"""How long acks wait while an operator stops the passive, without Spark.

    python -m tests.faults.planned_stops [--count 20]

A producer sends one event after the other to the active of a real pair. The run prints the longest
wait for an ack before a stop, without the first ack and its connection, and during the stop.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.pair import Pair, running_pair
from tests.e2e.steady_producer import SteadyProducer
from tests.e2e.without_spark import APPLICATION, ROOM, NodeWithoutSpark
from tests.waiting import wait_until

PATIENCE = 60
CALM_ACKS, LATER_ACKS = 300, 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    count = parser.parse_args().count
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-stops-"))
    with EmbeddedPostgres(directory / "postgres") as server:
        upgrade(open_engine(server.url))
        pair = Pair(directory, APPLICATION, server.url, NodeWithoutSpark, **ROOM)
        with running_pair(pair):
            waits = [_stopped(pair, number) for number in range(count)]
    for name, seconds in zip(("in calm", "during a stop"), zip(*waits, strict=True), strict=True):
        print(f"{name}: median {median(seconds):.3f} s, most {max(seconds):.3f} s of {count}")
    return 0


def _stopped(pair: Pair, number: int) -> tuple[float, float]:
    """Stop the passive once, and return the longest wait for an ack before it and during it."""
    wait_until(pair.is_protected, within=PATIENCE, every=0.1)
    active = pair.active()
    assert active is not None
    passive = pair.other(active)
    with SteadyProducer([active.url], "events", f"producer-{number}") as producer:
        wait_until(lambda: producer.acked >= 1, within=PATIENCE)
        producer.longest = 0.0
        wait_until(lambda: producer.acked >= CALM_ACKS, within=PATIENCE)
        calm, producer.longest = producer.longest, 0.0
        assert passive.stop() == 0
        stopped = producer.acked
        wait_until(lambda: producer.acked >= stopped + LATER_ACKS, within=PATIENCE)
    passive.start()
    return calm, producer.longest


if __name__ == "__main__":
    sys.exit(main())
