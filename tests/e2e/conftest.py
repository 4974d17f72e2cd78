"""An empty, upgraded database for each module, so that its tests can share one running node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from ha_engine.postgres.embedded import EmbeddedPostgres
from tests.e2e.databases import fresh_database

_numbers = count(1)


@pytest.fixture
def node_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Return a database for one test alone: a node with an empty journal needs its own group."""
    with fresh_database(postgres, f"node_{next(_numbers)}") as url:
        yield url


@pytest.fixture(scope="module")
def module_database(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a database that has the engine's schema and belongs to the module."""
    with fresh_database(postgres, request.module.__name__.rpartition(".")[2]) as url:
        yield url
