"""The doctor's check of the rights of sinks, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from ha_engine.config import Config
from ha_engine.doctor import sinks
from ha_engine.doctor.finding import Finding, State
from tests.doctor.configs import config_in
from tests.doctor.test_database import run

APPLICATION = """
name: delays
streams:
  flights:
    schema: {{id: int not null, delay: double}}
queries:
  late:
    sql: SELECT id, delay FROM flights WHERE delay > 15
    sinks:
      - {{name: table, type: postgres, table: reports.late, url: '{url}', {keys}}}
      - {{name: copies, type: files, directory: /var/tmp}}
"""
BUCKETED = APPLICATION.replace("    sinks:", "    standby: warm\n    sinks:").partition(
    "      - {{name: copies"
)[0]


@pytest.fixture
def writer(engine: Engine, database_url: str) -> Iterator[str]:
    """Return the URL of a role that may log in, and has no other right in the new schema reports.

    Every role may create in the schema public of older servers, so no test uses it.
    """
    name = f"writer_of_{make_url(database_url).database}"
    run(database_url, f"CREATE ROLE {name} LOGIN", "CREATE SCHEMA reports")
    yield make_url(database_url).set(username=name).render_as_string(hide_password=False)
    run(database_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def finding(
    home: Path,
    database_url: str,
    writer: str,
    keys: str = "mode: insert",
    application: str = APPLICATION,
) -> Finding:
    config: Config = config_in(home, database_url)
    Path(config.application).write_text(application.format(url=writer, keys=keys))
    return sinks.writable(config)


def test_tables_of_an_aggregation_need_four_rights(
    database_url: str, tmp_path: Path, writer: str
) -> None:
    role = make_url(writer).username
    aggregation = APPLICATION.replace("type: postgres, table: reports.late", "type: aggregation")
    keys = "table: reports.sums, at: at, per: [day, year], values: {n: count(*)}"
    run(
        database_url,
        "CREATE TABLE reports.sums_day (start timestamptz, n bigint)",
        f"GRANT INSERT ON reports.sums_day TO {role}",
        f"GRANT USAGE ON SCHEMA reports TO {role}",
    )
    text = finding(tmp_path, database_url, writer, keys, aggregation).text
    assert "lacks SELECT and UPDATE and DELETE on reports.sums_day" in text
    assert "lacks the table reports.sums_year, and the right CREATE to make it" in text
    assert "lacks the table reports.ha_engine_ledger" in text


def test_rights_that_a_sink_lacks_are_listed_until_they_are_granted(
    database_url: str, tmp_path: Path, writer: str
) -> None:
    role = make_url(writer).username
    found = finding(tmp_path, database_url, writer)
    assert found.state is State.FAILED
    assert "sink table of query late lacks the table reports.late" in found.text
    assert "lacks the table reports.ha_engine_ledger, and the right CREATE" in found.text
    run(
        database_url,
        "CREATE TABLE reports.late (id int, delay double precision)",
        f"GRANT INSERT ON reports.late TO {role}",
        f"GRANT CREATE ON SCHEMA reports TO {role}",
    )
    found = finding(tmp_path, database_url, writer)
    assert found.text == "sink table of query late lacks USAGE on the schema reports"
    run(database_url, f"GRANT USAGE ON SCHEMA reports TO {role}")
    found = finding(tmp_path, database_url, writer)
    assert (found.state, found.text.rpartition(": ")[2]) == (State.OK, "table, copies")
    upserts = "mode: upsert, key: [id]"
    found = finding(tmp_path, database_url, writer, upserts)
    assert found.text == "sink table of query late lacks SELECT and UPDATE on reports.late"


def test_sink_that_makes_its_table_needs_the_right_to_create(
    database_url: str, tmp_path: Path, writer: str
) -> None:
    found = finding(tmp_path, database_url, writer, "auto_create: true")
    assert "lacks the table reports.late, and the right CREATE to make it" in found.text
    run(database_url, f"GRANT ALL ON SCHEMA reports TO {make_url(writer).username}")
    assert finding(tmp_path, database_url, writer, "auto_create: true").state is State.OK


def test_database_of_a_sink_that_does_not_answer_is_named(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    away = "postgresql://nobody@127.0.0.1:1/reports"
    found = finding(tmp_path, database_url, away)
    assert found.state is State.FAILED
    assert "sink table of query late cannot be checked: " in found.text


def test_ledger_of_a_plug_in_is_checked_only_if_the_node_keeps_it(tmp_path: Path) -> None:
    away = config_in(tmp_path, "postgresql://nobody@127.0.0.1:1/reports")
    head, _, _ = APPLICATION.partition("      - ")
    kafka = "{name: topic, type: kafka, brokers: ['127.0.0.1:1'], topic: late, format: json}"
    files = "{name: copies, type: files, directory: /var/tmp}"
    Path(away.application).write_text(f"{head.format()}      - {kafka}\n")
    assert sinks.writable(away).state is State.OK
    Path(away.application).write_text(f"{head.format()}      - {kafka}\n      - {files}\n")
    assert sinks.writable(away).text.startswith("sink copies of query late cannot be checked: ")


def test_sink_with_atomic_batches_needs_the_rights_of_its_staging_tables(
    database_url: str, tmp_path: Path, writer: str
) -> None:
    role = make_url(writer).username
    run(
        database_url,
        "CREATE TABLE reports.late (id int, delay double precision)",
        "CREATE TABLE reports.ha_engine_ledger ()",
        f"GRANT USAGE ON SCHEMA reports TO {role}",
        f"GRANT INSERT ON reports.late TO {role}",
        f"GRANT SELECT, INSERT, UPDATE ON reports.ha_engine_ledger TO {role}",
    )
    assert finding(tmp_path, database_url, writer).state is State.OK
    atomic = "buckets: 2, atomic: batch", BUCKETED
    found = finding(tmp_path, database_url, writer, *atomic)
    assert "lacks SELECT on reports.late" in found.text
    assert "lacks the right CREATE in the schema of its table, for its staging" in found.text
    run(database_url, f"GRANT SELECT ON reports.late TO {role}")
    run(database_url, f"GRANT CREATE ON SCHEMA reports TO {role}")
    assert finding(tmp_path, database_url, writer, *atomic).state is State.OK
