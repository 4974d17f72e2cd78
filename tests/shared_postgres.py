"""One real PostgreSQL for a whole run of the tests, shared by all its processes.

It imports the engine only where it starts a server: tests/broken.py breaks the engine first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ha_engine.postgres.embedded import EmbeddedPostgres

DIRECTORY = "HA_ENGINE_TEST_POSTGRES"
"""The variable with the directory of a server that another process of the run has started."""


@contextmanager
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    """Attach to the run's server, or be the process that starts it."""
    from ha_engine.postgres.embedded import EmbeddedPostgres

    if given := os.environ.get(DIRECTORY):
        with EmbeddedPostgres(Path(given)) as server:
            yield server
    else:
        with new_postgres() as server:
            yield server


@contextmanager
def new_postgres() -> Iterator[EmbeddedPostgres]:
    """Start a separate server."""
    from ha_engine.postgres.embedded import EmbeddedPostgres

    # Use no directory below pytest's: the server's user must reach it when the tests run as root.
    directory = Path(tempfile.mkdtemp(prefix="ha-engine-test-"))
    with EmbeddedPostgres(directory) as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)
