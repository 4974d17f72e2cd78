"""One answer serves all requests while nothing has changed."""

from __future__ import annotations

from ha_engine.api.shared import SHARED_SECONDS, SharedAnswer


class Counted:
    def __init__(self) -> None:
        self.now, self.version, self.made = 0.0, 1, 0
        self.answer = SharedAnswer(self._make, lambda: self.version, lambda: self.now)

    def _make(self) -> bytes:
        self.made += 1
        return b"%d" % self.made


def test_concurrent_requests_share_one_answer() -> None:
    one = Counted()
    assert [one.answer.body() for _ in range(10)] == [b"1"] * 10
    assert one.made == 1


def test_next_answer_includes_a_change() -> None:
    one = Counted()
    one.answer.body()
    one.version += 1
    assert one.answer.body() == b"2"


def test_shared_answer_expires() -> None:
    one = Counted()
    one.answer.body()
    one.now += SHARED_SECONDS
    assert one.answer.body() == b"2"
