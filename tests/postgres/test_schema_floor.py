"""An upgrade of the schema lets older engines continue until it is finalised (RULES.md#r32)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from ha_engine import __version__
from ha_engine.errors import DatabaseNotReady, OlderEngineInUse
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.schema_version import NodeEngine, newest, read_state, require_usable
from ha_engine.postgres.upgrade import finalize
from tests.releases import contracting, release, run, version
from tests.waiting import wait_until

ADDS = {"0005_color": "ALTER TABLE ha_engine.lease ADD COLUMN color text NOT NULL DEFAULT 'red'"}
REMOVES = {"0006_no_color": "ALTER TABLE ha_engine.lease DROP COLUMN color"}
PATIENCE = 60


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that adds a column, and removes it once its upgrade is finalised."""
    place = tmp_path_factory.mktemp("releases") / "next"
    return release(place, version("9.0.0"), contracting("0006"), migrations={**ADDS, **REMOVES})


@pytest.fixture
def url(database_url: str, engine: Engine) -> str:
    """The URL of a database that this engine has prepared."""
    return database_url


def connect(url: str, node: str | None = "node-a", group: str = "flights") -> None:
    """Connect to the database once, as the node does."""
    engine = open_engine(url, connect_timeout=PATIENCE, statement_timeout=PATIENCE)
    store = PostgresLeaseStore(engine, group, 5.0, db_timeout=PATIENCE, node=node)
    with closing(store):
        store.read()


def test_a_node_records_its_engine_when_it_connects(url: str) -> None:
    connect(url, None)
    assert read_state(open_engine(url)).nodes == ()
    for _ in range(2):
        connect(url)
    recorded = NodeEngine("flights", "node-a", __version__, newest())
    assert read_state(open_engine(url)).nodes == (recorded,)


def test_only_another_engine_makes_a_connection_write(url: str) -> None:
    connect(url)
    engine = open_engine(url)
    tuples = "SELECT ctid::text, engine FROM ha_engine.node_engine"
    with engine.begin() as connection:
        before = connection.execute(text(tuples)).all()
    connect(url)
    with engine.begin() as connection:
        assert connection.execute(text(tuples)).all() == before
        connection.execute(text("UPDATE ha_engine.node_engine SET engine = '0.0.1'"))
    connect(url)
    assert read_state(engine).nodes[0].engine == __version__


def test_an_older_engine_uses_the_newer_schema_until_it_is_finalised(
    url: str, next_release: Path
) -> None:
    connect(url)
    upgraded = run(next_release, "db", "upgrade", "--url", url)
    assert "to 0005; engines that know version 0004 may use it until" in upgraded.stdout
    engine = open_engine(url)
    require_usable(engine)
    connect(url)

    refused = run(next_release, "db", "upgrade", "--finalize", "--url", url)
    assert refused.returncode == 1
    assert f"node-a of group flights (ha-engine {__version__})" in refused.stderr
    connect(url)

    finalized = run(next_release, "db", "upgrade", "--finalize", "--force", "--url", url)
    assert "only engines that know version 0006 may use it" in finalized.stdout
    assert read_state(engine).version == "0006"
    for use in (lambda: require_usable(engine), lambda: connect(url), lambda: connect(url, None)):
        with pytest.raises(DatabaseNotReady, match="install a newer version of ha-engine"):
            use()
    again = run(next_release, "db", "upgrade", "--finalize", "--url", url)
    assert "nothing to do" in again.stdout or "node-a" in again.stderr


def test_the_next_upgrade_does_not_remove_what_an_unfinalised_one_kept(
    url: str, next_release: Path, tmp_path: Path
) -> None:
    after_next = release(
        tmp_path / "after",
        contracting("0006"),
        migrations={**ADDS, **REMOVES, "0007_size": "SELECT 1"},
    )
    assert run(next_release, "db", "upgrade", "--url", url).returncode == 0
    refused = run(after_next, "db", "upgrade", "--url", url)
    assert "the upgrade to 0006 was not finalised" in refused.stderr
    assert run(next_release, "db", "upgrade", "--finalize", "--url", url).returncode == 0
    assert run(after_next, "db", "upgrade", "--url", url).returncode == 0
    state = read_state(open_engine(url))
    assert (state.version, state.floor) == ("0007", "0006")


def test_finalize_requires_the_upgrade_first(url: str, next_release: Path) -> None:
    refused = run(next_release, "db", "upgrade", "--finalize", "--url", url)
    assert refused.returncode == 2
    assert "run 'ha-engine db upgrade' first" in refused.stderr


def test_finalize_waits_for_a_node_that_connects_and_then_refuses(url: str) -> None:
    """The node's engine is older than this one, as its record says."""
    engine = open_engine(url, statement_timeout=PATIENCE)
    record = (
        "INSERT INTO ha_engine.node_engine SELECT 'flights', 'node-b', '0.0.1', '0003', now()"
        " FROM (SELECT 1 FROM ha_engine.schema_floor WHERE version <= '0004' FOR SHARE) AS floor"
    )
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    # In one transaction, each read of pg_stat_activity returns what the first one found.
    outside = engine.execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(1) as pool, engine.connect() as node, outside.connect() as observer:
        node.execute(text(record))
        finalizing = pool.submit(finalize, engine)
        wait_until(lambda: observer.scalar(text(waiting)) > 0, within=PATIENCE)
        node.commit()
        with pytest.raises(OlderEngineInUse, match="node-b of group flights"):
            finalizing.result(timeout=PATIENCE)


def test_a_database_that_accepts_no_writes_admits_a_node_without_a_record(url: str) -> None:
    read_only = f"{url}{'&' if '?' in url else '?'}options=-c%20default_transaction_read_only%3Don"
    connect(read_only)
    assert read_state(open_engine(url)).nodes == ()
