"""The journal for asyncio, with group commit in a thread of its own.

Records that arrive during one write and fdatasync wait for the next write. An idle writer writes at
once. The event loop encodes the records, so the writer's thread does little besides system calls.
Event loop and thread therefore seldom wait for the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ha_engine.errors import Backpressure, DiskFailed, JournalDamaged
from ha_engine.journal.journal import Journal, check_follows
from ha_engine.journal.record import Frame, to_frame
from ha_engine.system.stuck_watch import STUCK_SECONDS, StuckWatch
from ha_engine.types import Events, Position, Record

PENDING_BYTES_MAX = 256 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Exclusive:
    call: Callable[[], Any]
    outcome: asyncio.Future[Any]
    copies: bool


class JournalWriter:
    """Makes all changes of an open journal. A writer must be created and used on the event loop's
    thread.

    The writer makes all callbacks on the event loop. ``on_durable`` is called after each fdatasync,
    with the last sequence that is now durable. ``on_failed`` is called once, after which the writer
    writes nothing any more. ``on_stuck`` is called when the thread has worked on one call for
    ``stuck_after`` seconds. ``thread`` runs one call after the other; by default it is a thread.

    The caller that opened the journal also closes the journal.
    """

    def __init__(
        self,
        journal: Journal,
        on_durable: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        on_stuck: Callable[[], None] = lambda: None,
        *,
        stuck_after: float = STUCK_SECONDS,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        thread: Executor | None = None,
    ) -> None:
        self._journal, self._on_durable, self._on_failed = journal, on_durable, on_failed
        self._watch = StuckWatch(on_stuck, stuck_after)
        self._pending_bytes, self._pending_bytes_max = 0, pending_bytes_max
        self._loop = asyncio.get_running_loop()
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._queue: deque[Frame | _Exclusive] = deque()
        # ``_last`` is None while an exclusive call is queued, since the call may move the end of
        # the journal.
        self._last: Position | None = journal.last
        self._busy = self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._progress = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def is_late(self) -> bool:
        """Whether the journal's disk has not answered for some seconds."""
        return self._watch.is_late

    @property
    def pending_bytes(self) -> int:
        """The bytes of records that are appended but not durable yet."""
        return self._pending_bytes

    def append(self, records: Sequence[Record]) -> None:
        """Queue ``records`` for the next write, and return at once.

        Raises Backpressure, and queues nothing, when records of events do not fit into
        ``pending_bytes_max``. Other records are always queued (RULES.md#r30). Raises DiskFailed
        after a failure, AssertionError when the records do not continue the journal.
        """
        self._refuse_when_done()
        if self._last is not None:
            check_follows(self._last, [record.position for record in records])
        frames = [to_frame(record) for record in records]
        length = sum(frame.length for frame in frames)
        full = self._pending_bytes + length > self._pending_bytes_max
        if full and any(isinstance(record.body, Events) for record in records):
            raise Backpressure("the journal's disk does not keep up; send the events again later")
        self._pending_bytes += length
        if frames and self._last is not None:
            self._last = frames[-1].position
        self._enqueue(frames)

    async def wait_for_space(self, pending_bytes: int) -> None:
        """Return once at most ``pending_bytes`` bytes are not durable, or once the writer has
        failed."""
        while self._pending_bytes > pending_bytes and self._failure is None:
            self._progress.clear()
            await self._progress.wait()

    def run_exclusive(self, call: Callable[[], T], *, copies: bool = False) -> asyncio.Future[T]:
        """Run ``call`` in the writer's thread, after all records that were appended before and
        before all that are appended later.

        The journal's methods truncate_after, trim_before, give_up_after and bind_group need an
        exclusive call. The future raises an exception of ``call``; a DiskFailed or JournalDamaged
        also ends the writer. A call with ``copies`` takes longer the more data it copies, so it
        never counts as stuck.
        """
        self._refuse_when_done()
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._last = None
        self._enqueue([_Exclusive(call, outcome, copies)])
        return outcome

    async def close(self) -> None:
        """Write all queued records, then end the thread. No record may be appended after this
        call."""
        self._closing = True
        await self._idle.wait()
        self._thread.shutdown(wait=False)

    # -- internals: the thread has at most one piece of work; _busy says whether it has one

    def _enqueue(self, work: Sequence[Frame | _Exclusive]) -> None:
        self._queue.extend(work)
        if self._queue and not self._busy:
            self._busy = True
            self._idle.clear()
            # The write starts at the end of the event loop's turn, so that it includes the turn's
            # other appends.
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        if isinstance(self._queue[0], _Exclusive):
            self._submit_exclusive(self._queue[0])
        else:
            self._submit_frames()

    def _submit_frames(self) -> None:
        frames: list[Frame] = []
        while self._queue and isinstance(self._queue[0], Frame):
            frames.append(self._queue[0])
            self._queue.popleft()
        self._submit(
            lambda: self._write(frames), lambda done: self._written(frames, done), watched=True
        )

    def _submit_exclusive(self, exclusive: _Exclusive) -> None:
        self._queue.popleft()
        watched = not exclusive.copies
        self._submit(exclusive.call, lambda done: self._ran(exclusive, done), watched=watched)

    def _submit(
        self, call: Callable[[], Any], then: Callable[[Future[Any]], None], *, watched: bool
    ) -> None:
        def ended(done: Future[Any]) -> None:
            if watched:
                self._watch.end()
            then(done)

        if watched:
            self._watch.begin()
        future = self._thread.submit(call)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(ended, done))

    def _write(self, frames: list[Frame]) -> None:
        self._journal.append_frames(frames)
        self._journal.sync()

    def _written(self, frames: list[Frame], done: Future[Any]) -> None:
        if (failed := done.exception()) is not None:
            self._fail(failed)
            return
        self._pending_bytes -= sum(frame.length for frame in frames)
        self._progress.set()
        try:
            self._on_durable(frames[-1].position.sequence)
        except Exception as error:
            # The node would stall silently if it did not learn which records are durable.
            self._fail(error)
        self._continue()

    def _ran(self, exclusive: _Exclusive, done: Future[Any]) -> None:
        error = done.exception()
        if not exclusive.outcome.done():  # else: the waiting caller was cancelled
            if error is None:
                exclusive.outcome.set_result(done.result())
            else:
                exclusive.outcome.set_exception(error)
        if isinstance(error, DiskFailed | JournalDamaged):
            self._fail(error)
        elif not any(isinstance(work, _Exclusive) for work in self._queue):
            self._last = self._queue[-1].position if self._queue else self._journal.last  # type: ignore[union-attr]
        self._continue()

    def _continue(self) -> None:
        if self._queue and self._failure is None:
            self._start()
        else:
            self._busy = False
            self._idle.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for work in self._queue:
            if isinstance(work, _Exclusive) and not work.outcome.done():
                work.outcome.set_exception(error)
        self._queue.clear()
        self._progress.set()
        self._busy = False
        self._idle.set()
        self._on_failed(error)

    def _refuse_when_done(self) -> None:
        if self._failure is not None:
            raise DiskFailed(str(self._failure)) from self._failure
        if self._closing:
            raise RuntimeError("the journal writer is closed")
