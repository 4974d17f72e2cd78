"""A reader pins its revision for as long as it lives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ha_engine.errors import RevisionForgotten
from ha_engine.snapshot import pinning
from ha_engine.snapshot.pinning import PIN_SECONDS, pinned


class Pinned:
    """A store that keeps revision 1 until the test deletes it."""

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


def test_reader_renews_its_pin_in_time_while_bytes_arrive(
    clock: SimpleNamespace,
) -> None:
    store, told = Pinned(), list[int]()
    progress = pinned(store, 1, told.append)
    for count in range(10):
        clock.now += PIN_SECONDS / 5
        progress(count)
    assert store.pins == [PIN_SECONDS] * 6
    assert told == list(range(10))


def test_reader_gets_an_error_when_its_revision_is_deleted(clock: SimpleNamespace) -> None:
    store = Pinned()
    with pytest.raises(RevisionForgotten, match="revision 2 was deleted meanwhile"):
        pinned(store, 2, lambda _: None)
    progress = pinned(store, 1, lambda _: None)
    store.there, clock.now = False, clock.now + PIN_SECONDS
    with pytest.raises(RevisionForgotten, match="revision 1"):
        progress(1)
