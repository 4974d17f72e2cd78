"""Each check has prerequisites and a deadline, and no check raises an error."""

from __future__ import annotations

import threading

import pytest

from ha_engine.doctor.check import Check, examine
from ha_engine.doctor.finding import Finding, State, failed, ok, skipped, warning
from ha_engine.errors import ConfigError, JournalDamaged


def quiet(_name: str, _progress: str) -> None:
    """Take the progress of the checks."""


def found(*checks: Check) -> dict[str, Finding]:
    return {result.check: result.finding for result in examine(checks, quiet)}


@pytest.mark.parametrize(
    ("needed", "runs"),
    [
        (ok("fits"), True),
        (warning("slow", "hurry"), True),
        (failed("broken", "mend"), False),
        (skipped("unknown"), False),
    ],
)
def test_a_check_runs_only_after_a_success_of_its_prerequisite(needed: Finding, runs: bool) -> None:
    first = Check("disk", lambda _: needed)
    second = Check("journal", lambda _: ok("fits"), ("disk",))
    finding = found(first, second)["journal"]
    if runs:
        assert finding == ok("fits")
    else:
        assert finding == skipped("needs the check disk, which did not succeed")


def test_a_skipped_check_skips_those_that_need_it() -> None:
    checks = [
        Check(name, lambda _: ok(""), needs) for name, needs in (("b", ("a",)), ("c", ("b",)))
    ]
    states = [one.state for one in found(Check("a", lambda _: failed("", "")), *checks).values()]
    assert states == [State.FAILED, State.SKIPPED, State.SKIPPED]


def test_a_check_that_hangs_fails_at_its_deadline() -> None:
    released = threading.Event()

    def hang(_: object) -> Finding:
        released.wait()
        return ok("late")

    finding = found(Check("disk", hang, deadline=0.05), Check("clock", lambda _: ok("fits")))
    released.set()
    assert finding["disk"].state is State.FAILED
    assert finding["disk"].text == "did not end within 50ms"
    assert finding["clock"] == ok("fits")


@pytest.mark.parametrize(
    ("error", "text", "remedy"),
    [
        (ConfigError("a is wrong; correct it"), "a is wrong", "correct it"),
        (JournalDamaged("f", 3, "torn"), "f is damaged at byte 3: torn", "the records after it"),
        (PermissionError(13, "Permission denied", "/f"), "[Errno 13] Permission denied", "correct"),
        (KeyError("x"), "unexpected KeyError: 'x'", "report this as a defect"),
    ],
)
def test_an_error_of_a_check_is_its_finding(error: Exception, text: str, remedy: str) -> None:
    def fail(_: object) -> Finding:
        raise error

    finding = found(Check("disk", fail))["disk"]
    assert finding.state is State.FAILED
    assert finding.text.startswith(text)
    assert finding.remedy.startswith(remedy)


def test_the_progress_of_a_check_names_the_check() -> None:
    said: list[tuple[str, str]] = []

    def read(say: object) -> Finding:
        assert callable(say)
        say("1 of 2 segments")
        return ok("fits")

    list(examine([Check("journal", read)], lambda *words: said.append(words)))
    assert said == [("journal", ""), ("journal", "1 of 2 segments")]
