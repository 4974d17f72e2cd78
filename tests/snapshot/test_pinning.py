"""A revision that somebody reads is pinned for as long as the reader lives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ha_engine.errors import RevisionForgotten
from ha_engine.snapshot import pinning
from ha_engine.snapshot.pinning import PIN_SECONDS, pinned


class Pinned:
    """A store in which revision 1 is kept until it is told otherwise."""

    def __init__(self) -> None:
        self.there, self.pins = True, list[float]()

    def pin(self, revision_id: int, seconds: float) -> bool:
        self.pins.append(seconds)
        return self.there and revision_id == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(pinning, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_it_is_pinned_anew_before_the_pin_ends_as_long_as_bytes_come(
    clock: SimpleNamespace,
) -> None:
    store, told = Pinned(), list[int]()
    progress = pinned(store, 1, told.append)
    for count in range(10):
        clock.now += PIN_SECONDS / 5
        progress(count)
    assert store.pins == [PIN_SECONDS] * 6
    assert told == list(range(10))


def test_a_reader_is_told_that_its_revision_is_gone(clock: SimpleNamespace) -> None:
    store = Pinned()
    with pytest.raises(RevisionForgotten, match="revision 2 was deleted meanwhile"):
        pinned(store, 2, lambda _: None)
    progress = pinned(store, 1, lambda _: None)
    store.there, clock.now = False, clock.now + PIN_SECONDS
    with pytest.raises(RevisionForgotten, match="revision 1"):
        progress(1)
