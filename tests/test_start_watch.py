"""The decision to end a start of the query process without progress, tested without a process."""

from __future__ import annotations

import pytest

from ha_engine.supervisor.start_watch import (
    CPU_SHARE_MIN,
    GAP_LOOKS,
    LOOK_SECONDS_MAX,
    READ_BYTES_MIN,
    Effort,
    Patience,
    StartWatch,
)

PATIENCE = 120.0
ENOUGH_CPU = CPU_SHARE_MIN * PATIENCE


def stuck_after(watch: StartWatch, until: float, effort: Effort, *, since: float = 0.0) -> float:
    """Return the moment of the check that found the start stuck; ``until`` when none did."""
    now = since
    while now < until:
        now += watch.pause_seconds
        if watch.is_stuck(effort, now):
            return now
    return until


def test_a_start_that_does_nothing_is_ended_after_the_patience() -> None:
    watch = StartWatch(PATIENCE, "starting Python", 0.0)
    assert stuck_after(watch, 1000, Effort(0.0, 0)) == PATIENCE


def test_a_new_step_is_progress() -> None:
    watch = StartWatch(PATIENCE, "starting Python", 0.0)
    assert stuck_after(watch, 100, Effort(0.0, 0)) == 100
    watch.reached("starting Java", 100.0)
    assert stuck_after(watch, 1000, Effort(0.0, 0), since=100) == 100 + PATIENCE
    assert "while starting Java" in watch.reason(240.0)


@pytest.mark.parametrize(
    ("a_look", "is_progress"),
    [
        (Effort(ENOUGH_CPU / 20, 0), True),
        (Effort(ENOUGH_CPU / 30, 0), False),
        (Effort(0.0, READ_BYTES_MIN // 20), True),
        (Effort(0.0, READ_BYTES_MIN // 30), False),
    ],
)
def test_slow_start_with_enough_progress_is_not_ended(a_look: Effort, is_progress: bool) -> None:
    """The progress between two checks may be small, if the sum within the patience is enough."""
    watch = StartWatch(PATIENCE, "starting Java", 0.0)
    done, ended = Effort(0.0, 0), False
    for look in range(1, 400):
        done = Effort(done.cpu_seconds + a_look.cpu_seconds, done.bytes_read + a_look.bytes_read)
        ended = ended or watch.is_stuck(done, look * watch.pause_seconds)
    assert ended is not is_progress


def test_effort_of_an_ended_process_neither_counts_nor_hides_progress() -> None:
    watch = StartWatch(PATIENCE, "starting Java", 0.0)
    assert not watch.is_stuck(Effort(50.0, 0), 5.0)
    assert not watch.is_stuck(Effort(1.0, 0), 10.0)
    assert not watch.is_stuck(Effort(1.0 + ENOUGH_CPU, 0), 5.0 + PATIENCE - 1)
    last = Effort(1.0 + ENOUGH_CPU, 0)
    assert stuck_after(watch, 1000, last, since=124.0) == 124.0 + PATIENCE


def test_supervisor_that_was_stopped_itself_ends_no_start() -> None:
    watch = StartWatch(PATIENCE, "starting Java", 0.0)
    late = 10 * PATIENCE
    assert not watch.is_stuck(Effort(0.0, 0), late)
    assert stuck_after(watch, 1e6, Effort(0.0, 0), since=late) == late + PATIENCE


def test_check_that_is_a_little_late_does_not_save_a_stuck_start() -> None:
    watch = StartWatch(PATIENCE, "starting Java", 0.0)
    pause = (GAP_LOOKS - 0.5) * LOOK_SECONDS_MAX
    looks = [watch.is_stuck(Effort(0.0, 0), look * pause) for look in range(1, 12)]
    assert any(looks)


def test_patience_doubles_with_each_ended_start_and_resets_on_success() -> None:
    patience, seen = Patience(120.0), []
    for _ in range(7):
        seen.append(patience.seconds)
        patience.start_ended()
    assert seen == [120, 240, 480, 960, 1920, 1920, 1920]
    patience.start_succeeded()
    assert patience.seconds == 120


def test_reason_names_the_step_the_time_and_the_next_patience() -> None:
    watch = StartWatch(120.0, "starting Java", 0.0)
    assert watch.reason(240.0) == (
        "no progress for 120 s while starting Java: no CPU used, nothing read; "
        "retrying with a limit of 240 s"
    )
