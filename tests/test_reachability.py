"""The log reports once that the database is unreachable, and once that it is stable again."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ha_engine.node.reachability import HELD_SECONDS, Reachability

AWAY, BACK = "database unreachable, retrying", "database answers again"


class Database:
    """A database that answers or fails one call a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reachability = Reachability(lambda: self.now)

    def call(self, *answers: bool) -> None:
        for answer in answers:
            self.now += 1
            if answer:
                self.reachability.answered()
            else:
                self.reachability.failed("no answer within 0.5 s")


def told(*answers: bool) -> list[Any]:
    with capture_logs() as logs:
        Database().call(*answers)
    return [line["event"] for line in logs]


LONG = [True] * (int(HELD_SECONDS) + 1)


def test_database_that_always_answers_is_never_logged() -> None:
    assert told(*LONG) == []


def test_outage_of_any_length_is_two_log_lines() -> None:
    assert told(*[False] * 100, *LONG) == [AWAY, BACK]


def test_database_that_is_late_every_few_seconds_is_one_log_line() -> None:
    assert told(*[True, True, False] * 50) == [AWAY]


@pytest.mark.parametrize("times", [1, 3])
def test_each_outage_after_a_quiet_time_is_logged(times: int) -> None:
    assert told(*[False, *LONG] * times) == [AWAY, BACK] * times


def test_last_line_of_an_outage_has_the_number_of_failed_calls_and_the_time() -> None:
    database = Database()
    with capture_logs() as logs:
        database.call(False, True, False, *LONG)
    assert logs[0]["reason"] == "no answer within 0.5 s"
    assert (logs[-1]["event"], logs[-1]["failures"], logs[-1]["seconds"]) == (BACK, 2, 2.0)
