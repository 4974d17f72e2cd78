"""Run checks one after the other, each with its prerequisites and its deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ha_engine.config.quantities import format_duration
from ha_engine.doctor.finding import Finding, State, failed, of_error, skipped

Say = Callable[[str], None]
"""Receives the progress of a check that takes long."""

DEADLINE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name. ``needs`` names the checks that must succeed before this check runs."""

    name: str
    run: Callable[[Say], Finding]
    needs: tuple[str, ...] = ()
    deadline: float = DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class Result:
    """The finding of the check with the name ``check``."""

    check: str
    finding: Finding

    def to_json(self) -> dict[str, str]:
        found = self.finding
        return {
            "check": self.check,
            "state": found.state.value,
            "text": found.text,
            "remedy": found.remedy,
        }


def examine(checks: Iterable[Check], say: Callable[[str, str], None]) -> Iterator[Result]:
    """Yield the result of each check as soon as the check ends. No check raises an error.

    ``say`` receives the name of the check that runs, and the check's progress.
    """
    states: dict[str, State] = {}
    for check in checks:
        lacking = [name for name in check.needs if _is_lacking(states.get(name))]
        if lacking:
            found = skipped(f"needs the check {lacking[0]}, which did not succeed")
        else:
            say(check.name, "")
            found = _in_time(check, say)
        states[check.name] = found.state
        yield Result(check.name, found)


def _is_lacking(state: State | None) -> bool:
    return state in (None, State.FAILED, State.SKIPPED)


def _in_time(check: Check, say: Callable[[str, str], None]) -> Finding:
    """The finding of ``check``, or a failure if the check does not end before its deadline."""
    found: list[Finding] = []
    # The thread is a daemon, so that a check that never returns does not keep the command alive.
    thread = threading.Thread(
        target=lambda: found.append(_run(check, say)), name=f"check {check.name}", daemon=True
    )
    thread.start()
    thread.join(check.deadline)
    if found:
        return found[0]
    return failed(
        f"did not end within {format_duration(check.deadline)}",
        "look whether the disk, the network or the database hangs",
    )


def _run(check: Check, say: Callable[[str, str], None]) -> Finding:
    try:
        return check.run(lambda progress: say(check.name, progress))
    except Exception as error:
        return of_error(error)
