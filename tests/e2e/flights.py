"""The demo's flights, sent to a pair in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ha_engine.client import Producer
from ha_engine.demo.comparison import compare
from ha_engine.demo.flights import departures
from ha_engine.demo.nodes import sample_application
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair


@contextmanager
def flying(
    directory: Path,
    database_url: str,
    node: Callable[..., NodeUnderTest] = NodeUnderTest,
    /,
    *,
    standby: str = "hot",
    buckets: int | None = None,
    **sections: dict[str, Any],
) -> Iterator[Flights]:
    """Run a pair with the demo's application, whose queries have that standby, and whose sinks have
    so many buckets."""
    application = sample_application("flights.yaml")
    application = application.replace(
        "    output_mode:", f"    standby: {standby}\n    output_mode:"
    )
    if buckets is not None:
        created = "        auto_create: true"
        application = application.replace(created, f"{created}\n        buckets: {buckets}")
    pair = Pair(directory, application, database_url, node, **sections)
    with running_pair(pair):
        yield Flights(pair, database_url)


class Flights:
    """Sends flights to the active, and says which rows the sink must then have."""

    def __init__(self, pair: Pair, database_url: str) -> None:
        self.pair, self.database_url = pair, database_url
        self._year, self._sent = departures(), 0

    def send(self, count: int) -> None:
        taken: pa.Table = self._year.slice(self._sent, count)
        with Producer(self.pair.urls) as producer:
            for batch in taken.to_batches(max_chunksize=500):
                producer.send("departures", batch)
        self._sent += count

    def require_equal(self) -> None:
        """Require the rows of the reference, once every sink has all output."""
        self.pair.wait_settled()
        self.require_rows()

    def require_rows(self) -> None:
        """Require that the sinks have the rows of the reference."""
        outcomes = compare(self.database_url, self._year.slice(0, self._sent))
        assert [outcome for outcome in outcomes if not outcome.equal] == []
        assert all(outcome.expected > 0 for outcome in outcomes)
