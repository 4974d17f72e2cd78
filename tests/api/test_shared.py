"""An answer is made once for all who ask while nothing has changed."""

from __future__ import annotations

from ha_engine.api.shared import SHARED_SECONDS, SharedAnswer


class Counted:
    def __init__(self) -> None:
        self.now, self.version, self.made = 0.0, 1, 0
        self.answer = SharedAnswer(self._make, lambda: self.version, lambda: self.now)

    def _make(self) -> bytes:
        self.made += 1
        return b"%d" % self.made


def test_who_asks_at_about_the_same_time_gets_the_same_answer() -> None:
    one = Counted()
    assert [one.answer.body() for _ in range(10)] == [b"1"] * 10
    assert one.made == 1


def test_a_change_is_in_the_next_answer() -> None:
    one = Counted()
    one.answer.body()
    one.version += 1
    assert one.answer.body() == b"2"


def test_no_answer_is_old() -> None:
    one = Counted()
    one.answer.body()
    one.now += SHARED_SECONDS
    assert one.answer.body() == b"2"
