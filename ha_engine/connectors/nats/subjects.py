"""NATS's rules for subjects: tokens between dots, with the wildcards ``*`` and ``>``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = r"[^\s.*>\x00-\x1f\x7f]+"
_SUBJECT = re.compile(rf"{_WORD}(\.{_WORD})*")
_FILTER = re.compile(rf"(({_WORD}|\*)\.)*({_WORD}|\*|>)")


def is_subject(text: str) -> bool:
    """Whether a message can have the subject ``text``."""
    return bool(_SUBJECT.fullmatch(text))


def checked_subject(text: str) -> str:
    """Return ``text``. Raises ValueError if no message can have it as its subject."""
    if not is_subject(text):
        raise ValueError("is not a subject; write words between dots, such as orders.new")
    return text


def checked_filter(text: str) -> str:
    """Return ``text``. Raises ValueError if it is no subject, with or without wildcards."""
    if not _FILTER.fullmatch(text):
        raise ValueError("is not a subject or a pattern of subjects, such as orders.*")
    return text


def is_covered(subject: str, patterns: Iterable[str]) -> bool:
    """Whether one of ``patterns`` matches ``subject``."""
    tokens = subject.split(".")
    return any(_matches(tokens, pattern.split(".")) for pattern in patterns)


def _matches(tokens: list[str], pattern: list[str]) -> bool:
    if pattern[-1:] == [">"]:
        head = pattern[:-1]
        return len(tokens) > len(head) and _matches(tokens[: len(head)], head)
    return len(tokens) == len(pattern) and all(
        wanted in ("*", token) for token, wanted in zip(tokens, pattern, strict=True)
    )
