"""A sink of a plug-in: the rows go where it says, the ledger lies in the node's database.

The rows are delivered first and the ledger moves behind them, so what a crash leaves between the
two is delivered again. Whatever the plug-in does, raise or hang, stays within its own sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

import pyarrow as pa

from ha_engine.errors import EngineError, SinkRefused, SinkUnavailable
from ha_engine.outbox.batch_file import in_canonical_order, read_batch_file
from ha_engine.outbox.outbox import OutboxBatch
from ha_engine.plugins import OutputBatch, SinkPlace, SinkPlugin
from ha_engine.publish.sink import Deadline, Remaining
from ha_engine.publish.sinks.dead_letters import DeadLetters

T = TypeVar("T")

SLICE_SECONDS = 0.1
PREPARE_SECONDS = 10.0


class LedgerCalls(Protocol):
    """All block, and raise SinkUnavailable, SinkRefused or Fenced."""

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int: ...
    def advance(self, batch: int, epoch: int, remaining: Remaining) -> None: ...
    def close(self) -> None: ...


class PluginSink:
    """Implements ``publish.Sink``. ``kind`` is the ``type`` of the application file."""

    def __init__(
        self,
        kind: str,
        place: SinkPlace,
        open_plugin: Callable[[], SinkPlugin],
        ledger: LedgerCalls,
        dead_letters: DeadLetters,
    ) -> None:
        self.name = place.sink
        self._place, self._open, self._ledger = place, open_plugin, ledger
        self._dead_letters = dead_letters
        self._plugin: SinkPlugin | None = None
        self._guard = Guard(f"sink {place.sink} of query {place.query}, of type {kind},")

    @property
    def dead_letters(self) -> int:
        return self._dead_letters.rows

    def prepare(self, schema: pa.Schema) -> None:
        """Ask the plug-in whether it takes rows of ``schema``."""
        until = time.monotonic() + PREPARE_SECONDS
        self._guard.call(
            "prepare", lambda: self._opened().prepare(schema), lambda: until - time.monotonic()
        )

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the ledger's epoch and answer the last batch published."""
        return self._ledger.claim(epoch, start_after, group_id, deadline.remaining_seconds)

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Deliver the rows, if there are any, then move the ledger."""
        if batch.rows:
            output = OutputBatch(
                number,
                batch.rows,
                "/".join((self._place.group, self._place.query, self.name, str(number))),
                lambda: in_canonical_order(read_batch_file(batch.path)),
                deadline.remaining_seconds,
            )
            self._guard.call(
                f"deliver of batch {number}",
                lambda: self._opened().deliver(output),
                deadline.remaining_seconds,
            )
        self._ledger.advance(number, epoch, deadline.remaining_seconds)

    def close(self) -> None:
        """Let the plug-in close what it holds; a later call opens it again."""
        self._ledger.close()
        if self._plugin is not None and not self._guard.busy:
            until = time.monotonic() + PREPARE_SECONDS
            self._guard.call("close", self._plugin.close, lambda: until - time.monotonic())

    def _opened(self) -> SinkPlugin:
        if self._plugin is None:
            self._plugin = self._open()
        return self._plugin


class Guard:
    """Calls of code that may raise anything or never return, one at a time."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._turn = threading.Lock()
        self._step = ""

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    def call(self, step: str, work: Callable[[], T], remaining: Remaining) -> T:
        """Raises SinkUnavailable when the time is over: it may come to its end all the same."""
        while not self._turn.acquire(timeout=SLICE_SECONDS):
            if remaining() <= 0:
                raise SinkUnavailable(
                    f"{self._whose} hangs in {self._step}; restart the node if it stays so"
                )
        self._step, outcome = step, Future[T]()
        # A daemon: the end of the process does not wait for what hangs.
        threading.Thread(target=self._run, args=(work, outcome), name=step, daemon=True).start()
        while not outcome.done():
            left = remaining()
            if left <= 0:
                raise SinkUnavailable(f"{self._whose} did not end {step} in time")
            wait([outcome], min(left, SLICE_SECONDS))
        return self._result(step, outcome)

    def _run(self, work: Callable[[], T], outcome: Future[T]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._turn.release()
            outcome.set_exception(error)
        else:
            self._turn.release()
            outcome.set_result(result)

    def _result(self, step: str, outcome: Future[T]) -> T:
        try:
            return outcome.result()
        except EngineError:
            raise
        except BaseException as error:
            raise SinkRefused(
                f"{self._whose} failed in {step}: {type(error).__name__}: {error}"
            ) from error
