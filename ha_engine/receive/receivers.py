"""Open and close the gate and the sources together, when the core says so.

A source runs only while the gate is open. When the gate closes, the node stops each source without
waiting for its end. The closed gate refuses a source's late batches. Rows that were not journalled
are read again by the next active.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ha_engine.receive.gate import Gate
from ha_engine.receive.pull.puller import Puller, SourceStatus
from ha_engine.types import Record


class Receivers:
    """The gate and the sources, on the node's event loop.

    ``failed`` gets the exception of a source's task that ended by an error in the engine itself.
    """

    def __init__(self, gate: Gate, pullers: Sequence[Puller]) -> None:
        self._gate, self._pullers = gate, tuple(pullers)
        self._running: dict[asyncio.Task[None], Puller] = {}
        self._is_open = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        self._gate.open()
        if not self._is_open:
            self._is_open = True
            for puller in self._pullers:
                self._start(puller)

    def replay(self, record: Record) -> None:
        self._gate.replay(record)

    def close(self, reason: str, active: str | None = None) -> None:
        """Close the gate before the sources, because the gate answers or refuses their batches in
        flight."""
        self._gate.close(reason, active)
        self._is_open = False
        for task in self._running:
            # A second cancellation would end the wait for the close of the plug-in.
            if not task.cancelling():
                task.cancel()

    async def stop(self) -> None:
        """Stop the gate and the sources when the node ends; each plug-in gets a short time to
        close."""
        self.close("this node is stopping")
        while self._running:
            await asyncio.wait(self._running)

    def status(self) -> list[SourceStatus]:
        """The present status of each source."""
        return [puller.status() for puller in self._pullers]

    def _start(self, puller: Puller) -> None:
        before = {task for task, of in self._running.items() if of is puller}
        name = f"pull {puller.stream}/{puller.source}"
        task = asyncio.create_task(_after(before, puller), name=name)
        self._running[task] = puller
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)


async def _after(before: set[asyncio.Task[None]], puller: Puller) -> None:
    """Run ``puller`` after the end of its earlier tasks, which were cancelled."""
    if before:
        await asyncio.wait(before)
    await puller.run()
