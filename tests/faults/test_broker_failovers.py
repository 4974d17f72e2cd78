"""Messages of brokers through a pair that fails over; ``python -m tests.faults.broker_failovers``
does thirty faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.kafka_jars import needs_kafka
from tests.faults.active import in_random_order
from tests.faults.broker_failovers import FAULTS, run_broker_failovers
from tests.faults.exchanges import KINDS
from tests.programs import needs


@pytest.mark.nightly("test_pulled_sources and the tests of each connector end them at any moment")
@pytest.mark.spark
@needs_kafka()
@needs("mosquitto", "nats-server", "rabbitmq-server", "redis-server")
def test_no_fault_loses_or_doubles_a_message_of_a_broker(tmp_path: Path, database_url: str) -> None:
    faults = in_random_order(len(FAULTS), seed=3, faults=FAULTS)
    report = run_broker_failovers(tmp_path, database_url, list(KINDS), faults)
    assert report.wrong == []
    assert all(found.written for found in report.traffic)
