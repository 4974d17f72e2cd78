"""Clients that send events with producer ids, and repeat each request until it is acked."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ha_engine.errors import Rejected
from ha_engine.receive.gate import Receipt
from ha_engine.receive.producers import digest_of
from ha_engine.types import Submission
from tests.dst.pair.group import STREAMS

if TYPE_CHECKING:
    from tests.dst.pair.history import PairHistory

TIMEOUT_SECONDS = 1.5
ROWS_MAX = 20


@dataclass
class Producer:
    name: str
    stream: str
    sequence: int = 0
    acked: int = 0
    events: tuple[int, ...] = ()


class Producers:
    def __init__(self, history: PairHistory) -> None:
        self.history, self.random = history, Random(history.random.random())
        self.all = [Producer("p1", "flights"), Producer("p2", "weather"), Producer("p3", "flights")]
        self.sending, self.loses_acks = True, 0.05
        self.sent: dict[str, list[int]] = {name: [] for name in STREAMS}
        self._events = 0
        for one in self.all:
            history.agenda.after(self.random.uniform(0, 2), lambda one=one: self._next(one))  # type: ignore[misc]

    @property
    def all_acked(self) -> bool:
        return all(one.acked == one.sequence for one in self.all)

    def _next(self, one: Producer) -> None:
        if not self.sending:
            return
        first, self._events = self._events, self._events + self.random.randint(1, ROWS_MAX)
        one.sequence, one.events = one.sequence + 1, tuple(range(first, self._events))
        self.sent[one.stream] += one.events
        self._try(one, one.sequence, self.random.choice(sorted(self.history.hosts)))

    def _try(self, one: Producer, sequence: int, name: str) -> None:
        """Send the request to the host ``name``, and after a while to the other host."""
        if one.acked >= sequence:
            return
        process = self.history.hosts[name].process
        again = self.random.uniform(0.1, 0.3)
        if process is not None and process.serves:
            again = TIMEOUT_SECONDS
            batch = pa.record_batch([pa.array(one.events, pa.int64())], schema=STREAMS[one.stream])
            digest = digest_of(one.stream, repr(one.events).encode())
            submission = Submission(one.name, sequence, digest, batch.num_rows)
            gate = process.gate

            def answered(outcome: Any) -> None:
                self.history.agenda.after(
                    self.random.uniform(0.0005, 0.02),
                    lambda: self._answered(one, sequence, outcome),
                )

            process.serve(lambda: gate.submit(one.stream, batch, submission), answered)
        other = self.history.hosts[name].peer if self.random.random() < 0.7 else name
        self.history.agenda.after(again, lambda: self._try(one, sequence, other))

    def _answered(self, one: Producer, sequence: int, outcome: Any) -> None:
        if not isinstance(outcome, Receipt):
            refused = isinstance(outcome, Rejected)
            self.history.require(refused, f"a request of {one.name} failed: {outcome!r}")
            self.history.counts[f"refusals: {type(outcome).__name__}"] += 1
            return
        self.history.judge.acked(one.name, sequence, outcome.position)
        if self.random.random() < self.loses_acks or one.acked >= sequence:
            self.history.counts["acks lost"] += 1
            return
        one.acked = sequence
        self.history.counts["acks"] += 1
        self.history.agenda.after(self.random.uniform(0.05, 1.5), lambda: self._next(one))
