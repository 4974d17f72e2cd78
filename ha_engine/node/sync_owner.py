"""What the sync stage asks of its node; see ``sync.Owner``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ha_engine.api.cluster import report_of
from ha_engine.core import inputs as on
from ha_engine.journal.writer import JournalWriter
from ha_engine.node.driver import Driver
from ha_engine.stats.counters import Transfer
from ha_engine.sync import Hello, Report

PENDING_BYTES_MAX = 32 << 20
"""Beyond what the disk has still to write, a link is not read on: the peer's window fills
(RULES.md#r30)."""


class SyncOwner:
    """Joins the stage to the driver and the journal's writer."""

    def __init__(
        self,
        driver: Driver,
        writer: JournalWriter,
        transfer: Transfer,
        hello: Hello,
        ingest: Callable[[], str],
    ) -> None:
        self._driver, self._writer, self._transfer = driver, writer, transfer
        self._hello, self._ingest = hello, ingest

    def hello(self) -> Hello:
        return replace(self._hello, group_id=self._driver.core.group_id or "")

    def report(self) -> Report:
        return report_of(self._driver.core, self._transfer.to_go, self._ingest())

    def committed(self) -> int:
        return self._driver.core.journal.committed

    def handle(self, event: on.Input) -> None:
        self._driver.handle(event)

    async def room(self) -> None:
        await self._writer.room(PENDING_BYTES_MAX)

    def fail(self, error: BaseException) -> None:
        self._driver.fail(error)
