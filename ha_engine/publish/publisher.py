"""Publish while this node is active, with one watched task for each sink of each query.

The core decides when the publisher starts and stops. The module ``delivery`` does the work of a
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from ha_engine.errors import Fenced
from ha_engine.publish.delivery import AdmittedBatches, Delivery, SinkStatus, Timing
from ha_engine.publish.sink import Authority, Sink

log = structlog.get_logger(__name__)

QuerySink = tuple[str, str]


class Publisher:
    """Publishes on the node's event loop, which also runs the callbacks.

    ``on_published(query, sink, batch)`` is called when the ledger has every batch up to ``batch``.
    ``on_fenced(epoch)`` is called after a task ended because its ledger has the higher ``epoch``.
    ``start_after`` returns the batch after which a sink without a ledger row begins.
    ``group_id`` returns the group's UUID, which is known once a node is promoted.
    Each claim of a ledger calls ``start_after`` and ``group_id``.
    ``failed`` gets the exception of a task that ended with any other error than Fenced.
    """

    def __init__(
        self,
        outbox: AdmittedBatches,
        sinks: Mapping[QuerySink, Sink],
        authority: Authority,
        *,
        on_published: Callable[[str, str, int], None],
        on_fenced: Callable[[int], None],
        group_id: Callable[[], str],
        timing: Timing | None = None,
        start_after: Callable[[str, str], int] = lambda query, sink: 0,
    ) -> None:
        self._on_published, self._on_fenced = on_published, on_fenced
        timing = timing or Timing()
        self._deliveries = {
            (query, name): Delivery(
                query,
                sink,
                outbox,
                authority,
                timing,
                partial(start_after, query, name),
                group_id,
            )
            for (query, name), sink in sinks.items()
        }
        # In the order of their starts, so that a history can be repeated.
        self._running: dict[asyncio.Task[None], QuerySink] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, epoch: int) -> None:
        """Claim every ledger under ``epoch``, and publish what each ledger lacks (RULES.md#r24)."""
        for key, delivery in self._deliveries.items():
            before = [task for task, of in self._running.items() if of == key]
            for task in before:
                task.cancel()
            name = f"publish {'/'.join(key)}"
            task = asyncio.create_task(self._deliver(delivery, epoch, before), name=name)
            self._running[task] = key
            task.add_done_callback(self._ended)

    def stop(self) -> Coroutine[Any, Any, None]:
        """Cancel every task now; the returned coroutine waits until the tasks have ended."""
        for task in self._running:
            task.cancel()
        return _all_over(list(self._running))

    def admitted(self, query: str, number: int) -> None:
        """Wake the query's deliveries, because the outbox has admitted batch ``number``."""
        for (of, _), delivery in self._deliveries.items():
            if of == query:
                delivery.wake()

    def claim_again(self, query: str) -> None:
        """Claim the ledgers of the query's sinks again, if their deliveries wait for a batch."""
        for (of, _), delivery in self._deliveries.items():
            if of == query:
                delivery.claim_again()

    def status(self) -> list[SinkStatus]:
        """The present status of each sink."""
        return [delivery.status() for delivery in self._deliveries.values()]

    async def close(self) -> None:
        """Stop publishing for good, and end the threads of the deliveries."""
        await self.stop()
        for delivery in self._deliveries.values():
            delivery.end()

    # ------------------------------------------------------------------------------------------

    async def _deliver(
        self, delivery: Delivery, epoch: int, before: Sequence[asyncio.Task[None]]
    ) -> None:
        await _all_over(before)  # a connection never serves two epochs at once
        await delivery.run(epoch, partial(self._on_published, delivery.query, delivery.sink.name))

    def _ended(self, task: asyncio.Task[None]) -> None:
        key = self._running.pop(task)
        match None if task.cancelled() else task.exception():
            case None:
                pass
            case Fenced() as fenced:
                log.warning("fenced", query=key[0], sink=key[1], by_epoch=fenced.epoch)
                self._on_fenced(fenced.epoch)
            case error:
                if not self.failed.done():
                    self.failed.set_exception(error)


async def _all_over(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
