"""Fixtures of every tier: one real PostgreSQL per test session, an empty database per test."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, text

from ha_engine.postgres.embedded import EmbeddedPostgres
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.lease_store import PostgresLeaseStore
from ha_engine.postgres.upgrade import upgrade
from tests import tiers
from tests.shared_postgres import new_postgres, shared_postgres
from tests.waiting import mark_descendants

# Set this before the import of gRPC. Tests fork only to exec at once, and its fork handlers have
# ended the child before the exec, where a thread of the test was in a call.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# The duration of an example depends more on the machine than on the code.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    mark_descendants()
    tiers.hasten_spark(config)


def pytest_report_header(config: pytest.Config) -> str:
    return tiers.header(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.sort_out(config, items)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """Return the server of the run. A test that stops or kills a server starts its own."""
    with shared_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def plugin_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the package ``tests/plugin_example`` as pip does."""
    target = tmp_path_factory.mktemp("installed")
    flags = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", str(target)]
    example = Path(__file__).parent / "plugin_example"
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, str(example)], check=True)
    sys.path.insert(0, str(target))
    yield
    sys.path.remove(str(target))
    for name in [name for name in sys.modules if name.startswith("example_sink")]:
        del sys.modules[name]


@pytest.fixture
def engine(database_url: str) -> Engine:
    """Of a database that has the engine's own tables, and nothing in them."""
    engine = open_engine(database_url, connect_timeout=30, statement_timeout=60)
    upgrade(engine)
    return engine


@pytest.fixture
def store(engine: Engine) -> Iterator[PostgresLeaseStore]:
    """Return the store of the lease of the group flights, which no node has held."""
    with closing(PostgresLeaseStore(engine, "flights", 5.0, db_timeout=10)) as store:
        yield store


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """Return a server that the test may kill, freeze or reconfigure."""
    with new_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Return the URL of an empty database of this test alone."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    patient = open_engine(postgres.url, connect_timeout=30, statement_timeout=120)
    administration = patient.execution_options(isolation_level="AUTOCOMMIT")
    with administration.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield postgres.url_of(name)
    with administration.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Undo what a test, or a command in this process, changes of the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
