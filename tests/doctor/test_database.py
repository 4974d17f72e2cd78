"""The doctor's checks of a real PostgreSQL, directly and through a real PgBouncer."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text

from ha_engine.config import Config
from ha_engine.doctor import clock, database, pooler
from ha_engine.doctor.finding import Finding, State
from ha_engine.errors import DatabaseNotReady, DatabaseUnreachable
from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from tests.doctor.configs import config_in
from tests.e2e.node_under_test import free_port
from tests.e2e.standby import Standby
from tests.programs import found, needs
from tests.waiting import wait_until

pytestmark = pytest.mark.rotates("files")

CHECKS = (
    database.server,
    database.schema,
    database.rights,
    database.settings,
    pooler.synchronous_commit,
    pooler.timeouts,
    pooler.notifications,
    clock.against_database,
)


@pytest.fixture
def config(engine: Engine, database_url: str, tmp_path: Path) -> Config:
    """Return a config with a database that has the engine's schema."""
    return config_in(tmp_path, database_url)


def run(url: str, *statements: str) -> None:
    administration = open_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    with administration.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def name_of(url: str) -> str:
    return str(make_url(url).database)


@pytest.fixture
def role(database_url: str, tmp_path: Path) -> Iterator[Config]:
    """Return a config whose role may log in, and has no right."""
    name = f"stranger_of_{name_of(database_url)}"
    run(database_url, f"CREATE ROLE {name} LOGIN")
    url = make_url(database_url).set(username=name)
    yield config_in(tmp_path, url.render_as_string(hide_password=False))
    run(database_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_everything_passes_on_a_prepared_database(config: Config) -> None:
    findings = [check(config) for check in CHECKS]
    assert [finding for finding in findings if finding.state is not State.OK] == []
    assert findings[0].text.startswith("PostgreSQL ")


def test_a_database_without_a_standby_is_a_warning(config: Config) -> None:
    finding = database.synchronous_standby(config)
    assert finding.state is State.WARNING
    assert finding.text.startswith("no synchronous standby is named")


def test_a_standby_that_is_named_and_not_connected_fails(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    run(own_postgres.url, "ALTER SYSTEM SET synchronous_standby_names = 'other'")
    run(own_postgres.url, "SELECT pg_reload_conf()")
    config = config_in(tmp_path, own_postgres.url)
    wait_until(lambda: database.synchronous_standby(config).state is State.FAILED)
    assert "no standby is connected" in database.synchronous_standby(config).text


@pytest.mark.slow
def test_a_standby_fails_as_the_database_and_passes_as_the_standby(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    standby = Standby(own_postgres, own_postgres.directory / "standby")
    standby.start()
    try:
        finding = database.server(config_in(tmp_path, standby.own_url))
        assert (finding.state, "is a standby" in finding.text) == (State.FAILED, True)
        config = config_in(tmp_path, own_postgres.url)
        named = "ALTER SYSTEM SET synchronous_standby_names = '*'"
        run(own_postgres.url, named, "SELECT pg_reload_conf()")
        wait_until(lambda: database.synchronous_standby(config).state is State.OK)
        assert "is *; connected standbys: 1" in database.synchronous_standby(config).text
    finally:
        standby.stop()


def test_settings_that_may_lose_writes_fail(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    run(own_postgres.url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    config = config_in(tmp_path, own_postgres.url)
    wait_until(lambda: database.settings(config).state is State.FAILED)
    assert database.settings(config).text.startswith("fsync is off")


def test_a_server_with_too_few_connections_is_a_warning(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    config = config_in(tmp_path, own_postgres.url)
    idle = [open_engine(own_postgres.url).connect() for _ in range(90)]
    finding = database.settings(config)
    for connection in idle:
        connection.close()
    assert (finding.state, "connections are free" in finding.text) == (State.WARNING, True)


def test_a_server_that_ends_idle_sessions_is_a_warning(config: Config, database_url: str) -> None:
    run(database_url, f"ALTER DATABASE {name_of(database_url)} SET idle_session_timeout = '10min'")
    finding = database.settings(config)
    assert finding.state is State.WARNING
    assert finding.text.startswith("idle_session_timeout is 10min, so the server ends")


def test_a_role_without_rights_fails_and_its_rights_are_listed(
    engine: Engine, role: Config
) -> None:
    finding = database.rights(role)
    assert finding.state is State.FAILED
    assert "lacks USAGE on schema ha_engine, SELECT on ha_engine.schema_version" in finding.text
    assert "SELECT and INSERT and UPDATE on ha_engine.lease" in finding.text
    with pytest.raises(DatabaseNotReady, match="refuses this role"):
        database.schema(role)


def test_a_single_missing_right_is_named(engine: Engine, role: Config, database_url: str) -> None:
    name = make_url(role.database.url.get_secret_value()).username
    run(
        database_url,
        f"GRANT USAGE ON SCHEMA ha_engine TO {name}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA ha_engine TO {name}",
    )
    assert database.rights(role).state is State.OK
    run(database_url, f"REVOKE UPDATE ON ha_engine.lease FROM {name}")
    finding = database.rights(role)
    assert (finding.state, finding.text) == (
        State.FAILED,
        f"role {name} lacks UPDATE on ha_engine.lease",
    )


def test_a_role_that_may_not_create_the_schema_fails(role: Config) -> None:
    finding = database.rights(role)
    assert (finding.state, "lacks CREATE on the database" in finding.text) == (State.FAILED, True)


def test_a_database_without_the_schema_fails(database_url: str, tmp_path: Path) -> None:
    config = config_in(tmp_path, database_url)
    with pytest.raises(DatabaseNotReady, match="has schema version none"):
        database.schema(config)
    assert database.rights(config).text.endswith(
        "may create schema ha_engine, which does not exist yet"
    )


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("schema_version SET version_num = '0001'", "ha-engine db upgrade"),
        ("schema_floor SET version = '9999'", "install a newer version"),
    ],
)
def test_a_schema_that_this_engine_may_not_use_fails(
    config: Config, database_url: str, change: str, advice: str
) -> None:
    run(database_url, f"UPDATE ha_engine.{change}")
    with pytest.raises(DatabaseNotReady, match=advice):
        database.schema(config)


def test_a_database_that_accepts_no_writes_fails(config: Config, database_url: str) -> None:
    name = name_of(database_url)
    run(database_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    finding = database.server(config)
    assert (finding.state, "accepts no writes" in finding.text) == (State.FAILED, True)


def test_a_database_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    config = config_in(tmp_path, f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere")
    with pytest.raises(DatabaseUnreachable, match="Connection refused"):
        database.server(config)


def test_an_embedded_database_is_not_started(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    assert database.server(config).state is State.SKIPPED
    assert not config.database.embedded_dir.exists()


# -- PgBouncer -------------------------------------------------------------------------------------


@contextmanager
def bouncer(url: str, mode: str, settings: str) -> Iterator[str]:
    """Run PgBouncer before the database of ``url``; yield the URL through PgBouncer."""
    target, port = make_url(url), free_port()
    with tempfile.TemporaryDirectory(prefix="ha-engine-") as directory:
        # PgBouncer does not run as root, and its user must reach its file and PostgreSQL's socket.
        Path(directory).chmod(0o755)
        file = Path(directory) / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n{target.database} = host={target.query['host']}"
            f" port={target.query['port']} dbname={target.database} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\n{settings}\n"
        )
        program = found("pgbouncer")
        assert program is not None
        user = ["-u", Path(str(target.query["host"])).owner()] if os.geteuid() == 0 else []
        with subprocess.Popen([program, "-q", *user, str(file)]) as process:
            try:
                yield f"postgresql://postgres@127.0.0.1:{port}/{target.database}"
            finally:
                process.terminate()


def through(url: str, tmp_path: Path) -> Config:
    """Return a config with PgBouncer's URL, once PgBouncer listens."""
    config = config_in(tmp_path, url)

    def answers() -> bool:
        try:
            database.server(config)
        except DatabaseUnreachable as error:
            return "Connection refused" not in str(error)
        return True

    wait_until(answers)
    return config


@needs("pgbouncer")
def test_a_pooler_that_refuses_settings_is_an_error_that_names_the_setting(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    with bouncer(database_url, "session", "") as url:
        config = through(url, tmp_path)
        finding = database.server(config)
    assert finding.state is State.FAILED
    assert "unsupported startup parameter" in finding.text
    assert "ignore_startup_parameters = options" in finding.remedy


@needs("pgbouncer")
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_that_ignores_settings_is_noticed(
    engine: Engine, database_url: str, tmp_path: Path, mode: str
) -> None:
    name = name_of(database_url)
    run(database_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with bouncer(database_url, mode, "ignore_startup_parameters = options") as url:
        config = through(url, tmp_path)
        with pytest.raises(DatabaseNotReady, match="synchronous_commit is off for the database"):
            pooler.synchronous_commit(config)
        timeouts = pooler.timeouts(config)
    assert timeouts.state is State.WARNING
    assert "statement_timeout = 0 ms" in timeouts.text
    assert "ALTER ROLE ... SET statement_timeout = 1000" in timeouts.remedy
    assert pooler.synchronous_commit(config_in(tmp_path, database_url)).state is State.OK


@needs("pgbouncer")
def test_settings_of_the_database_replace_those_that_a_pooler_ignores(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    for setting in names:
        run(database_url, f"ALTER DATABASE {name_of(database_url)} SET {setting} = 1000")
    with bouncer(database_url, "session", "ignore_startup_parameters = options") as url:
        config = through(url, tmp_path)
        assert pooler.synchronous_commit(config).state is State.OK
        assert pooler.timeouts(config).state is State.OK


@needs("pgbouncer")
@pytest.mark.parametrize(("mode", "state"), [("session", State.OK), ("transaction", State.WARNING)])
def test_a_pooler_that_drops_notifications_is_a_warning(
    engine: Engine, database_url: str, tmp_path: Path, mode: str, state: State
) -> None:
    with bouncer(database_url, mode, "ignore_startup_parameters = options") as url:
        finding: Finding = pooler.notifications(through(url, tmp_path))
    assert finding.state is state
