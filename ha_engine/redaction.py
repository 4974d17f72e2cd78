"""Redact the secrets in a text before it is logged."""

from __future__ import annotations

import re

REDACTED = "**redacted**"
_SECRETS_IN_TEXT = re.compile(
    r"(?P<before>://[^/\s:@]*:)[^/\s@]+(?=@)"  # the password of a URL
    r"|(?P<name>\b(?:password|passwd|token|secret)=)[^\s&'\"]+",  # of a connection string
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return ``text`` with redacted passwords in URLs and connection strings."""
    return _SECRETS_IN_TEXT.sub(lambda m: (m["before"] or m["name"]) + REDACTED, text)
