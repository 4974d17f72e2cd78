"""The tests that every kind of sink with its ledger at the destination must pass, besides those of
``sink_contract``, which it inherits:

class TestMySink(LedgerSinkContract):
    kind = MySink

The engine calls ``claim`` before the first ``deliver`` of an instance, after each call that raised,
and after ``close``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from ha_engine.errors import Fenced, SinkRefused, SinkUnavailable
from ha_engine.plugins import Claim, LedgerSinkPlugin, SinkPlugin, keeps_ledger
from ha_engine.testing.sink_contract import CALL_SECONDS, SCHEMA, SinkContract, batch_of, numbered


class LedgerSinkContract(SinkContract):
    """The tests of a kind of sink that implements ``plugins.LedgerSinkPlugin``."""

    seconds = CALL_SECONDS
    """The time of each call."""

    def setup_method(self, method: Callable[..., None]) -> None:
        super().setup_method(method)
        self._epoch = 0

    def claimed(self, epoch: int | None = None, start_after: int = 0) -> LedgerSinkPlugin:
        """A new instance that has claimed the ledger, with the next epoch if ``epoch`` is None."""
        sink = cast(LedgerSinkPlugin, self.opened())
        sink.prepare(SCHEMA)
        self.claim(sink, epoch, start_after)
        return sink

    def claim(
        self,
        sink: SinkPlugin,
        epoch: int | None = None,
        start_after: int = 0,
        group_id: str = "group-id",
    ) -> int:
        """Let ``sink`` claim the ledger, and return the last batch that is there."""
        if epoch is None:
            self._epoch += 1
            epoch = self._epoch
        until = time.monotonic() + self.seconds
        claim = Claim(epoch, start_after, group_id, lambda: until - time.monotonic())
        return cast(LedgerSinkPlugin, sink).claim(claim)

    def _prepared(self) -> SinkPlugin:
        return self.claimed()

    # -- the contract ------------------------------------------------------------------------------

    def test_it_keeps_its_ledger(self) -> None:
        assert keeps_ledger(self.kind)

    def test_a_closed_sink_delivers_again(self) -> None:
        sink = self.claimed()
        sink.deliver(batch_of(1, numbered(1)))
        sink.close()
        sink.close()
        assert self.claim(sink, self._epoch) == 1
        sink.deliver(batch_of(2, numbered(2)))
        self._require(1, 2)

    def test_a_sink_without_a_ledger_begins_where_the_claim_says(self) -> None:
        sink = self.claimed(start_after=6)
        sink.deliver(batch_of(7, numbered(7)))
        assert self.claim(sink, start_after=20) == 7
        self._require(7)

    def test_a_batch_without_rows_moves_the_ledger(self) -> None:
        sink = self.claimed()
        sink.deliver(batch_of(1, numbered(1, rows=0)))
        assert self.claim(sink) == 1
        self._require()

    def test_a_gap_is_refused(self) -> None:
        sink = self.claimed()
        _raises(SinkRefused, "gap", lambda: sink.deliver(batch_of(2, numbered(2))))
        self._require()

    def test_an_earlier_active_cannot_deliver_after_a_claim(self) -> None:
        earlier = self.claimed()
        earlier.deliver(batch_of(1, numbered(1)))
        later = self.claimed()
        late = batch_of(2, numbered(2))
        _raises((Fenced, SinkUnavailable), "", lambda: earlier.deliver(late))
        later.deliver(batch_of(2, numbered(2)))
        self._require(1, 2)

    def test_a_claim_with_a_lower_epoch_is_fenced(self) -> None:
        later = self.claimed(epoch=5)
        _raises(Fenced, "epoch 5", lambda: self.claimed(epoch=4))
        self.claim(later, epoch=5)
        later.deliver(batch_of(1, numbered(1)))
        self._require(1)

    def test_the_ledger_of_another_group_is_refused(self) -> None:
        ours = self.claimed()
        other = self.opened()
        _raises(SinkRefused, "another-group", lambda: self.claim(other, group_id="another-group"))
        ours.deliver(batch_of(1, numbered(1)))
        self._require(1)

    def _require(self, *numbers: int) -> None:
        if numbers:
            super()._require(*numbers)
        else:
            assert self._found() == []


def _raises(
    kinds: type[Exception] | tuple[type[Exception], ...], text: str, call: Callable[[], object]
) -> None:
    try:
        call()
    except kinds as error:
        told = str(error)
    else:
        raise AssertionError(f"the call did not raise {kinds}")
    assert text in told, f"the error does not say {text!r}: {told}"
