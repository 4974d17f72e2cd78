"""The result of one check, with the remedy for a failure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ha_engine.errors import EngineError


class State(Enum):
    """Whether a check found a fault. A warning is a risk with which the node works."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: what the check found, and what the operator should do."""

    state: State
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    return Finding(State.OK, text)


def warning(text: str, remedy: str) -> Finding:
    return Finding(State.WARNING, text, remedy)


def failed(text: str, remedy: str) -> Finding:
    return Finding(State.FAILED, text, remedy)


def skipped(reason: str) -> Finding:
    return Finding(State.SKIPPED, reason)


def of_error(error: Exception) -> Finding:
    """The finding of a check that an error ended."""
    match error:
        case EngineError():
            # The message of each EngineError is what happened, a semicolon, and what to do.
            text, _, remedy = " ".join(str(error).split()).partition("; ")
            return failed(text, remedy)
        case OSError():
            return failed(str(error), "correct the cause that the operating system names")
        case _:
            return failed(
                f"unexpected {type(error).__name__}: {error}",
                "report this as a defect of ha-engine",
            )
