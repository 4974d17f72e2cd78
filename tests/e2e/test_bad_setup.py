"""An impossible setup is refused with one sentence of advice and the correct exit code."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.journal import Journal
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.upgrade import upgrade
from tests.e2e.databases import rows
from tests.e2e.node_under_test import (
    SPARK_SECONDS,
    Ended,
    NodeUnderTest,
    command,
    free_port,
    running,
)
from tests.e2e.without_spark import no_spark
from tests.waiting import wait_until

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
APPLICATION = """
name: setup
streams:
  events:
    schema: {id: int not null, text: string, at: timestamp}
queries:
  copies:
    sql: SELECT id, text FROM events
    sinks:
      - {name: table, type: postgres, table: copies, auto_create: true}
"""
BAD_QUERIES = {
    "syntax": (
        "SELECT id FRM events WHERE",
        "query syntax: ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near",
    ),
    "unknown_column": (
        "SELECT colour FROM events",
        "with name `colour` cannot be resolved. Did you mean one of the following? [`at`, `id`",
    ),
    "expression": (
        "SELECT id, rand() AS chance FROM events",
        "query expression uses rand(), which differs between nodes; use _event_id from "
        "system_columns, or a hash of it",
    ),
    "clock": (
        "SELECT id, current_timestamp() AS seen FROM events",
        "query clock uses current_timestamp(), which differs between nodes; use an event's own "
        "time, or _received_at from system_columns",
    ),
    "sample": (
        "SELECT id FROM events TABLESAMPLE (10 PERCENT)",
        "query sample uses TABLESAMPLE or sample(), which differs between nodes; keep rows by a "
        "hash",
    ),
    "output_mode": (
        "SELECT text, count(*) AS n FROM events GROUP BY text",
        "query output_mode cannot run in output_mode append",
    ),
}
"""SQL that only Spark can check, with its errors, the three kinds of nondeterminism included."""


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., Ended]:
    """Run ``ha-engine run`` on a config that must not start; ``None`` removes a key."""

    def run(environ: dict[str, str] | None = None, **keys: Any) -> Ended:
        ended = command("run", "--config", str(config_file(tmp_path, **keys)), environ=environ)
        assert ended.err.count("\n") == 1, ended.err
        assert ended.err.startswith("ha-engine: ")
        assert ended.out == ""
        return ended

    return run


def config_file(directory: Path, **keys: Any) -> Path:
    application = directory / "application.yaml"
    application.write_text(APPLICATION)
    tree = {
        "application": str(application),
        "node": {"data_dir": str(directory / "data")},
        "database": {"url": NOWHERE},
        "http": {"listen": f"127.0.0.1:{free_port()}"},
        **keys,
    }
    path = directory / "ha-engine.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


# -- config and application ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"grup": "g"}, "grup: is not a known key; did you mean group?"),
        ({"lease": {"ttl": "3 parsecs"}}, "lease.ttl: '3 parsecs' needs a number with a unit"),
        (
            {"http": {"max_body": "16 Miles"}},
            "http.max_body: '16 Miles' needs a number with a unit",
        ),
        (
            {"database": {"url": "mysql://h/d"}},
            "must be 'embedded' or a URL that starts with postgresql://",
        ),
        ({"application": "/nowhere/app.yaml"}, "/nowhere/app.yaml: cannot be read"),
    ],
    ids=["unknown key", "wrong unit", "wrong unit of size", "other database", "no application"],
)
def test_a_wrong_config_is_refused_with_the_key(
    refused: Callable[..., Ended], keys: dict[str, Any], sentence: str
) -> None:
    ended = refused(**keys)
    assert ended.code == 2
    assert sentence in ended.err


def test_a_wrong_key_of_the_application_is_refused_by_check_and_run(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    application = tmp_path / "application.yaml"
    application.write_text(APPLICATION.replace("sinks:", "sink:"))
    for words in (["app", "check", str(application)], ["run", "--config", str(config)]):
        ended = command(*words)
        assert (ended.code, ended.out) == (2, "")
        assert "queries.copies.sink is not a known key; did you mean 'sinks'?" in ended.err
        assert ended.err.count("\n") == 1


def bad_application() -> str:
    tree = yaml.safe_load(APPLICATION)
    for name, (sql, _) in BAD_QUERIES.items():
        tree["queries"][name] = {"sql": sql}
    return yaml.safe_dump(tree, sort_keys=False)


@pytest.mark.spark
def test_app_check_reports_the_error_of_each_query(tmp_path: Path) -> None:
    file = tmp_path / "application.yaml"
    file.write_text(bad_application())
    ended = command("app", "check", str(file))
    assert ended.code == 2
    assert "Traceback" not in ended.err
    for _, sentence in BAD_QUERIES.values():
        assert sentence in ended.out
    assert f"{len(BAD_QUERIES) + 1} queries, {len(BAD_QUERIES)} cannot run" in ended.out


@pytest.mark.nightly("'app check' of this module refuses the same queries")
@pytest.mark.spark
def test_run_fails_the_bad_queries_like_app_check_and_runs_the_good_one(
    module_database: str, tmp_path: Path
) -> None:
    node = NodeUnderTest(tmp_path, bad_application(), module_database)

    def states() -> dict[str, str]:
        queries = (node.status() or {"queries": {}})["queries"]
        return {name: query["state"] for name, query in queries.items()}

    expected = {"copies": "running", **dict.fromkeys(BAD_QUERIES, "failed")}
    with running(node):
        wait_until(lambda: states() == expected, within=SPARK_SECONDS, every=0.1)
        status, log = node.status(), node.log_text()
        assert status is not None
        for name, (_, sentence) in BAD_QUERIES.items():
            assert sentence in status["queries"][name]["reason"]
            assert sentence in log
        assert "Traceback" not in log
        assert node.send("events", [{"id": 7, "text": "x"}]).status_code == 200
        wait_until(lambda: _copies(module_database) == [(7, "x")], within=SPARK_SECONDS, every=0.5)


def _copies(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT id, text FROM copies")


# -- the machine -----------------------------------------------------------------------------------


def test_host_without_java_gets_the_name_of_the_package_to_install(
    refused: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = refused({"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert ended.code == 2
    assert ended.err == (
        "ha-engine: there is no java on the PATH: Spark needs Java 17 or newer; "
        "install it and set JAVA_HOME or PATH\n"
    )


def test_old_java_is_refused_with_its_version(
    refused: Callable[..., Ended], tmp_path: Path
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    ended = refused({"PATH": path, "JAVA_HOME": ""})
    assert ended.code == 2
    assert f"{java} is version 11: Spark needs Java 17 or newer" in ended.err


def test_a_port_in_use_is_named(refused: Callable[..., Ended]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = refused(http={"listen": address})
    assert ended.code == 1
    assert ended.err == (
        f"ha-engine: http.listen {address} cannot be bound: Address already in use; "
        "stop the program that uses it, or choose another port\n"
    )


def test_a_journal_of_another_group_is_refused(
    refused: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    Journal.open(tmp_path / "data" / "journal", group="harbour").close()
    ended = refused(group="airport")
    assert ended.code == 1
    assert "belongs to group harbour, not to airport; set group: harbour, or give" in ended.err


def test_a_second_node_on_the_same_data_directory_is_refused(
    node_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    node = NodeUnderTest(tmp_path, APPLICATION, node_database)
    with running(node):
        node.wait_active()
        before = node.status()
        ended = command("run", "--config", str(node.config_path))
        assert (ended.code, ended.out) == (1, "")
        assert ended.err == (
            f"ha-engine: {node.data_dir} is in use by another node; "
            "stop it, or give this node a data_dir of its own\n"
        )
        after = node.status()
        assert before is not None
        assert after is not None
        assert (after["epoch"], after["role"]) == (before["epoch"], "active")


# -- the database ----------------------------------------------------------------------------------


def test_db_init_says_that_the_database_is_unreachable(tmp_path: Path) -> None:
    ended = command("db", "init", "--config", str(config_file(tmp_path)))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("ha-engine: the database 127.0.0.1/nothing cannot be reached: ")
    assert ended.err.endswith("; check that it runs, and that its URL is right\n")
    assert ended.err.count("\n") == 1


def test_database_without_the_schema_is_refused_with_the_command_to_run(
    refused: Callable[..., Ended], database_url: str
) -> None:
    ended = refused(database={"url": database_url})
    assert ended.code == 2
    assert "has schema version none, this program needs" in ended.err
    assert ended.err.endswith("; run: ha-engine db init\n")


def test_run_waits_for_an_unreachable_database_and_logs_it_once(
    own_postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_spark(tmp_path)))
    upgrade(open_engine(own_postgres.url))
    node = NodeUnderTest(tmp_path, APPLICATION, own_postgres.url)
    own_postgres.stop()
    with running(node):
        wait_until(lambda: node.status() is not None, within=30)
        away = "database unreachable, retrying"
        wait_until(lambda: away in node.log_text(), within=30)
        checks = {path: node.http.get(path).status_code for path in ("/liveness", "/readiness")}
        assert checks == {"/liveness": 200, "/readiness": 503}
        refused = node.send("events", [{"id": 1}])
        assert refused.status_code == 503
        assert refused.json()["error"]
        assert node.process is not None
        assert node.process.poll() is None
        own_postgres.start()
        node.wait_active()
        back = "database answers again"
        wait_until(lambda: back in node.log_text(), within=60)
        log = node.log_text()
        assert (log.count(away), log.count(back)) == (1, 1)
