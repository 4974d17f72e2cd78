"""The installation and upgrade of the schema."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from ha_engine.errors import ConfigError, DatabaseNotReady, DatabaseUnreachable
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.schema_version import newest, read_state, require_usable
from ha_engine.postgres.upgrade import finalize, upgrade


def test_first_upgrade_creates_the_schema_and_the_second_changes_nothing(database_url: str) -> None:
    engine = open_engine(database_url)
    assert read_state(engine).version is None
    first = upgrade(engine)
    assert first.before.version is None
    assert upgrade(engine).before == first.after == read_state(engine)
    assert (first.after.version, first.after.floor) == (newest(), newest())
    require_usable(engine)


def test_concurrent_upgrades_are_safe(database_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda _: upgrade(open_engine(database_url)), range(6)))
    assert sum(outcome.before.version is None for outcome in outcomes) == 1
    assert len({outcome.after.version for outcome in outcomes}) == 1


def test_the_schema_may_have_another_name(database_url: str) -> None:
    engine = open_engine(database_url)
    upgrade(engine, "Other Schema")
    assert read_state(engine).version is None
    assert read_state(engine, "Other Schema").floor == newest()


def test_node_requests_init_and_refuses_a_newer_schema_once_it_is_finalised(
    database_url: str,
) -> None:
    engine = open_engine(database_url)
    with pytest.raises(DatabaseNotReady, match="ha-engine db init"):
        require_usable(engine)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ha_engine.schema_version SET version_num = '9999'"))
    require_usable(engine)
    assert upgrade(engine).after.version == "9999"
    with pytest.raises(DatabaseNotReady, match="that upgraded the schema"):
        finalize(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ha_engine.schema_floor SET version = '9999'"))
    for call in (require_usable, upgrade, finalize):
        with pytest.raises(DatabaseNotReady, match="serves only engines that know"):
            call(engine)


def test_unreachable_database_is_one_sentence_without_the_password() -> None:
    engine = open_engine("postgresql://someone:s3cret@127.0.0.1:1/nowhere")
    with pytest.raises(DatabaseUnreachable) as caught:
        read_state(engine)
    assert "127.0.0.1/nowhere" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_missing_database_is_reported(database_url: str) -> None:
    with pytest.raises(DatabaseNotReady, match="does not exist"):
        read_state(open_engine(database_url.replace("test_", "absent_")))


@pytest.mark.parametrize("url", ["mysql://root@host/db", "nonsense", "sqlite://"])
def test_url_of_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_engine(url)
