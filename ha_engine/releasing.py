"""Gives up the lease of a node process that is certainly dead: nobody needs to wait for its ttl."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from ha_engine.errors import DatabaseUnreachable, EngineError
from ha_engine.types import DatabaseIdentity, Holder, LeaseRow

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 0.5


class LeaseStore(Protocol):
    """What is needed of the row."""

    def read(self) -> LeaseRow | None: ...
    def identity(self) -> DatabaseIdentity: ...
    def compare_and_set(
        self, expected: LeaseRow, wanted: LeaseRow, *, why: str | None = None
    ) -> LeaseRow | None: ...


class Releases:
    """Of the node ``node``, whose data directory is ``data_dir``."""

    def __init__(self, store: LeaseStore, node: str, data_dir: Path) -> None:
        self._store, self._node, self._data_dir = store, node, data_dir
        self._turn = asyncio.Lock()

    async def release(self, process_id: str, *, within: float = 0.0) -> None:
        """Once, and again for ``within`` seconds while the database does not answer."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(DatabaseUnreachable),
            stop=stop_after_delay(within),
            wait=wait_fixed(AGAIN_SECONDS),
            reraise=True,
        )
        try:
            await retrying(self._in_turn, process_id)
        except (EngineError, OSError, ValueError) as error:  # the latter of the high water's file
            log.warning("lease not released; it ends by itself", reason=str(error))

    async def _in_turn(self, process_id: str) -> None:
        async with self._turn:
            await asyncio.to_thread(self._release, Holder(self._node, process_id))

    def _release(self, dead: Holder) -> None:
        # The core, which that imports, is not to keep the supervisor from starting everything.
        from ha_engine.data_dir import kept_high_water

        row, identity = self._store.read(), self._store.identity()
        free = kept_high_water(self._data_dir).freed(row, dead, identity)
        if row is not None and free is not None:
            self._store.compare_and_set(row, free, why="the node process died")
