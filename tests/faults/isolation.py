"""The active's host is cut off from the other one and from the database: the outage of acks.

    python -m tests.faults.isolation [--count 10] [--ttl 2s]

It lasts from the last ack of the active to the first of the other node. Each run has two new nodes,
without Spark.
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
from tests.e2e.network import BETWEEN_NODES
from tests.e2e.partitioned import PATIENCE, partitioned
from tests.faults.failovers import LEASES
from tests.waiting import wait_until


def outage(directory: Path, ttl: str) -> float:
    """Return the outage of one run in seconds."""
    with EmbeddedPostgres(directory / "postgres") as server:
        upgrade(open_engine(server.url))
        with partitioned(directory, server.url, LEASES[ttl]) as scene:
            active, passive = scene.client_of(scene.active), scene.client_of(scene.passive)
            scene.network.silence(BETWEEN_NODES, f"{scene.active.name} to database")
            wait_until(lambda: passive.acked, within=PATIENCE)
            return min(passive.acked.values()) - max(active.acked.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--ttl", choices=LEASES, default="2s", help="of the lease")
    given = parser.parse_args()
    outages = []
    for number in range(given.count):
        directory = Path(tempfile.mkdtemp(prefix="ha-engine-isolation-"))
        outages.append(outage(directory, given.ttl))
        sys.stdout.write(f"{number + 1}: {outages[-1]:.2f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"median {median(outages):.2f} s, most {max(outages):.2f} s\n")


if __name__ == "__main__":
    main()
