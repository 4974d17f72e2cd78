"""The record of refusals, under a simulated clock."""

from __future__ import annotations

import pytest

from ha_engine.sync.refusals import CURRENT_SECONDS, KEPT_MAX, Refusals


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_reason_is_logged_once_while_the_attempts_continue(
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


def test_latest_reason_of_each_node_stays_current_for_a_while() -> None:
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


def test_number_of_remembered_strangers_is_bounded() -> None:
    refusals = Refusals(Clock())
    for number in range(1_000):
        refusals.note(f"stranger-{number}", "unknown")
    assert len(refusals.current()) == KEPT_MAX
    assert "stranger-999" in refusals.current()
