"""A sink of a plug-in: the plug-in delivers the rows, and the ledger is in the node's database.

The plug-in delivers the rows of a batch before the ledger moves to the batch. After a crash between
delivery and ledger, the batch is delivered again. A LedgerSinkPlugin has the ledger itself, in one
transaction with the rows, so no batch is delivered again. A plug-in that raises or hangs affects
only its own sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar, cast

import pyarrow as pa

from ha_engine.errors import Fenced, OutboxDamaged, SinkRefused, SinkUnavailable
from ha_engine.outbox.batch_file import in_canonical_form, read_batch_file
from ha_engine.outbox.outbox import OutboxBatch
from ha_engine.plugins import Claim, LedgerSinkPlugin, OutputBatch, SinkPlace, SinkPlugin
from ha_engine.plugins.calls import begin, description_of
from ha_engine.publish.sink import Deadline, Remaining
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.messages import MessageEncoder

T = TypeVar("T")

_OUTCOMES = (SinkUnavailable, SinkRefused, OutboxDamaged)
SLICE_SECONDS = 0.1
PREPARE_SECONDS = 2.0
"""Limit of ``prepare``: the query process waits for it before all of its queries."""
CLOSE_SECONDS = 0.2
"""Limit of ``close``: a demotion waits for it."""


class LedgerCalls(Protocol):
    """The ledger of one sink.

    All methods of a ledger block, and raise SinkUnavailable, SinkRefused or Fenced.
    """

    def claim(self, epoch: int, start_after: int, group_id: str, remaining: Remaining) -> int: ...
    def advance(self, batch: int, epoch: int, remaining: Remaining) -> None: ...
    def close(self) -> None: ...


class PluginSink:
    """Implements ``publish.Sink``. ``kind`` is the sink's ``type`` in the application file.

    ``ledger`` is None if the plug-in has its ledger itself, and ``encoder`` is None if the plug-in
    writes rows instead of messages.
    """

    def __init__(
        self,
        kind: str,
        place: SinkPlace,
        open_plugin: Callable[[], SinkPlugin],
        ledger: LedgerCalls | None,
        dead_letters: SinkDeadLetters,
        encoder: MessageEncoder | None = None,
    ) -> None:
        self.name = place.sink
        self._place, self._open, self._ledger = place, open_plugin, ledger
        self._dead_letters, self._encoder = dead_letters, encoder
        self._plugin: SinkPlugin | None = None
        # A plug-in without a ledger knows no epoch, so its Fenced is a failure like any other.
        may_raise = _OUTCOMES if ledger is not None else (*_OUTCOMES, Fenced)
        self._guard = Guard(f"sink {place.sink} of query {place.query}, of type {kind},", may_raise)

    @property
    def dead_letters(self) -> int:
        return self._dead_letters.rows

    def prepare(self, schema: pa.Schema) -> None:
        """Ask the plug-in whether it takes rows of ``schema``.

        Raises SinkUnavailable while another call runs.
        """
        if self._guard.busy:
            raise SinkUnavailable(f"sink {self.name} is busy with an earlier call")
        self._guard.call("prepare", lambda: self._prepare(schema), _for_seconds(PREPARE_SECONDS))

    def _prepare(self, schema: pa.Schema) -> None:
        if self._encoder is not None:
            self._encoder.require_fit(schema)
        self._opened().prepare(schema)

    def claim(self, epoch: int, start_after: int, group_id: str, deadline: Deadline) -> int:
        """Raise the ledger's epoch and return the last published batch."""
        if self._ledger is not None:
            return self._ledger.claim(epoch, start_after, group_id, deadline.remaining_seconds)
        claim = Claim(epoch, start_after, group_id, deadline.remaining_seconds)
        return self._guard.call(
            f"claim of epoch {epoch}",
            lambda: int(cast(LedgerSinkPlugin, self._opened()).claim(claim)),
            deadline.remaining_seconds,
        )

    def publish(self, number: int, batch: OutboxBatch, epoch: int, deadline: Deadline) -> None:
        """Deliver the rows of the batch, and then move the ledger to the batch."""
        if batch.rows or self._ledger is None:
            output = self._output(number, batch, deadline)
            # After a forced failover batch n may have other rows, so a late delivery of an earlier
            # epoch says nothing about it.
            self._guard.call(
                f"deliver of batch {number} in epoch {epoch}",
                lambda: self._opened().deliver(output),
                deadline.remaining_seconds,
            )
        if self._ledger is not None:
            self._ledger.advance(number, epoch, deadline.remaining_seconds)

    def _output(self, number: int, batch: OutboxBatch, deadline: Deadline) -> OutputBatch:
        def read() -> pa.Table:
            return in_canonical_form(read_batch_file(batch.path))

        key = "/".join((self._place.group, self._place.query, self.name, str(number)))
        remaining, encoder = deadline.remaining_seconds, self._encoder
        if encoder is None:
            return OutputBatch(number, batch.rows, key, read, remaining)
        return OutputBatch(
            number, batch.rows, key, read, remaining, lambda: encoder.messages(read())
        )

    def close(self) -> None:
        """Close the plug-in within CLOSE_SECONDS; a later call opens the plug-in again."""
        if self._ledger is not None:
            self._ledger.close()
        if self._plugin is not None and not self._guard.busy:
            self._guard.call("close", self._plugin.close, _for_seconds(CLOSE_SECONDS))

    def _opened(self) -> SinkPlugin:
        if self._plugin is None:
            self._plugin = self._open()
        return self._plugin


def _for_seconds(seconds: float) -> Remaining:
    until = time.monotonic() + seconds
    return lambda: until - time.monotonic()


class Guard:
    """Calls code of a plug-in, which may raise anything or never return, one call at a time.

    A caller whose time runs out may call again with the same step, and gets the outcome of the
    first call. A step that takes longer than one deadline therefore runs only once. The exceptions
    ``may_raise`` are outcomes of a call, and any other is a failure of the plug-in.
    """

    def __init__(self, whose: str, may_raise: tuple[type[Exception], ...]) -> None:
        self._whose, self._may_raise = whose, may_raise
        self._lock = threading.Lock()
        self._begun: tuple[str, Future[Any]] | None = None

    @property
    def busy(self) -> bool:
        begun = self._begun
        return begun is not None and not begun[1].done()

    def call(self, step: str, work: Callable[[], T], remaining: Remaining) -> T:
        """Run ``work``.

        Raises SinkUnavailable when the time is over, but ``work`` continues in its thread.
        """
        while True:
            if (left := remaining()) <= 0:
                raise SinkUnavailable(f"{self._whose} {self._late(step)}")
            mine, outcome = self._begin(step, work)
            if wait([outcome], min(left, SLICE_SECONDS)).done and mine:
                with self._lock:
                    self._begun = None
                return self._result(step, outcome)

    def _begin(self, step: str, work: Callable[[], T]) -> tuple[bool, Future[T]]:
        """Begin ``step`` if no other step runs.

        Return whether the running step is ``step``, and the future of the running step.
        """
        with self._lock:
            if self._begun is None or (self._begun[0] != step and self._begun[1].done()):
                self._begun = step, begin(step, work)
            return self._begun[0] == step, self._begun[1]

    def _late(self, step: str) -> str:
        begun = self._begun
        if begun is None or begun[0] == step:
            return f"did not finish {step} in time; restart the node if that lasts"
        return f"has not finished {begun[0]} yet; restart the node if that lasts"

    def _result(self, step: str, outcome: Future[T]) -> T:
        try:
            return outcome.result()
        except self._may_raise:
            raise
        except BaseException as error:
            raise SinkRefused(f"{self._whose} failed in {step}: {description_of(error)}") from error
