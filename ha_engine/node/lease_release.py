"""Release the lease of a node process that is certainly dead, so that another node need not wait a
ttl.

    python -m ha_engine.node.lease_release < wanted.json

The supervisor runs this program after the death of a node process, because the supervisor itself
does not connect to the database. If the supervisor died too, the next node process releases the
lease of the dead node process. On an error, the program exits with code 1 and writes the reason to
standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Protocol

from ha_engine.errors import DatabaseUnreachable, EngineError
from ha_engine.node.high_water import kept_high_water
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow

AGAIN_SECONDS = 0.5


class LeaseStore(Protocol):
    """The calls on the lease row that a release of the lease needs."""

    def read(self) -> LeaseRow | None: ...
    def identity(self) -> DatabaseIdentity: ...
    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, reason: str | None = None
    ) -> LeaseRow | None: ...


def release(store: LeaseStore, dead: Holder, data_dir: Path) -> None:
    """Try once to release the lease of ``dead``, whose data directory is ``data_dir``.

    Raises EngineError, OSError, ValueError.
    """
    row, identity = store.read(), store.identity()
    free = kept_high_water(data_dir).released_row(row, dead, identity)
    if row is not None and free is not None:
        store.compare_and_set(row, free, reason="the node process died")


async def release_within(store: LeaseStore, dead: Holder, data_dir: Path, seconds: float) -> None:
    """Release the lease of ``dead``, and retry for ``seconds`` while the database does not
    answer."""
    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(DatabaseUnreachable),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(AGAIN_SECONDS),
        reraise=True,
    )
    await retrying(asyncio.to_thread, release, store, dead, data_dir)


def main() -> int:
    """Read the arguments as JSON from standard input, and release the lease."""
    from ha_engine.postgres.engine import open_engine
    from ha_engine.postgres.lease_store import PostgresLeaseStore

    wanted = json.load(sys.stdin)
    engine = open_engine(
        wanted["url"],
        connect_timeout=wanted["connect_timeout"],
        statement_timeout=wanted["db_timeout"],
    )
    store = PostgresLeaseStore(
        engine,
        wanted["group"],
        wanted["ttl"],
        db_timeout=wanted["db_timeout"],
        schema=wanted["schema"],
    )
    dead = Holder(wanted["node"], wanted["process"])
    try:
        release(store, dead, Path(wanted["data_dir"]))
    except (EngineError, OSError, ValueError) as error:  # the last two: the high-water file
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
