"""What is kept of refusals, by a clock of the test's own."""

from __future__ import annotations

import pytest

from ha_engine.sync.refusals import CURRENT_SECONDS, KEPT_MAX, Refusals


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reason_is_logged_once_while_the_attempts_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(50):
        clock.now += 1
        refusals.note("b", "one")
        refusals.note("b", "other")
    assert capsys.readouterr().out.count("peer refused") == 2
    clock.now += CURRENT_SECONDS + 1
    refusals.note("b", "one")
    assert capsys.readouterr().out.count("peer refused") == 1


def test_the_latest_reason_of_each_node_is_current_for_a_while() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refusals.note("b", "one")
    refusals.note("c", "its own")
    clock.now += 6
    refusals.note("b", "other")
    assert refusals.current() == {"b": "other", "c": "its own"}
    clock.now += 6
    assert refusals.current() == {"b": "other"}
    refusals.forget("b")
    assert refusals.current() == {}


def test_strangers_without_number_take_no_memory() -> None:
    refusals = Refusals(Clock())
    for number in range(1_000):
        refusals.note(f"stranger-{number}", "unknown")
    assert len(refusals.current()) == KEPT_MAX
    assert "stranger-999" in refusals.current()
