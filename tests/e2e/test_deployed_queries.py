"""Queries of a pair with Spark change by deployments, and their output stays that of the
reference."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from ha_engine.demo.nodes import sample_application
from tests.e2e.flights import Flights, flying
from tests.e2e.test_changed_application import changed
from tests.e2e.test_deploy import ACCESS, app
from tests.e2e.test_restore import ON_DEMAND, snapshot_now
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly("test_deploy deploys without queries, and tests/query changes them"),
]

FUNCTION = """
  carriers:
    function: rules:by_carrier
    output_mode: update
    sinks:
      - {name: table, type: postgres, table: carriers, mode: upsert, key: [carrier],
         auto_create: true}
"""
RULES = """
from helper import counted
from pyspark.sql.functions import lit

def by_carrier(streams):
    return streams["departures"].groupBy(lit("all").alias("carrier")).agg(counted("flights"))
"""
HELPER = """
from pyspark.sql.functions import count, lit

def counted(name):
    return (count("*") * lit({factor})).alias(name)
"""


def test_queries_keep_their_state_over_a_deployment_under_load(
    node_database: str, tmp_path: Path
) -> None:
    application = tmp_path / "changed.yaml"
    with flying(tmp_path, node_database, **ON_DEMAND, **ACCESS) as flights:
        flights.pair.wait_protected()
        flights.send(6_000)
        application.write_text(changed(sample_application("flights.yaml")))
        sending = threading.Thread(target=flights.send, args=(3_000,))
        sending.start()
        done = app(flights.pair.a, "deploy", str(application))
        sending.join()
        assert (done.code, done.err) == (0, "")
        wait_until(lambda: flights.pair.active() is not None, within=60)
        active = flights.pair.active()
        assert active is not None
        active.wait_settled()
        snapshot_now(active)
        flights.pair.wait_protected()
        flights.send(1_000)
        flights.require_equal()
        for node in flights.pair.nodes.values():
            assert "a batch differs" not in node.log_text()


def test_deployed_python_replaces_the_python_of_the_deployment_before(
    node_database: str, tmp_path: Path
) -> None:
    directory = tmp_path / "rules"
    directory.mkdir()
    (directory / "application.yaml").write_text(sample_application("flights.yaml") + FUNCTION)
    (directory / "rules.py").write_text(RULES)
    with flying(tmp_path, node_database, **ON_DEMAND, **ACCESS) as flights:
        flights.pair.wait_protected()
        for factor in (1, 10):
            (directory / "helper.py").write_text(HELPER.format(factor=factor))
            done = app(flights.pair.a, "deploy", str(directory))
            assert (done.code, done.err) == (0, "")
            flights.pair.wait_protected()
            before = _counted(flights)
            flights.send(1_000)
            flights.pair.wait_settled()
            assert _counted(flights) == factor * (before + 1_000)


def _counted(flights: Flights) -> int:
    with create_engine(flights.database_url).connect() as connection:
        if connection.scalar(text("SELECT to_regclass('carriers')")) is None:
            return 0
        return int(connection.scalar(text("SELECT coalesce(sum(flights), 0) FROM carriers")) or 0)
