"""Blots secrets out of text, for logs."""

from __future__ import annotations

import re

REDACTED = "**redacted**"
_SECRETS_IN_TEXT = re.compile(
    r"(?P<before>://[^/\s:@]*:)[^/\s@]+(?=@)"  # the password of a URL
    r"|(?P<name>\b(?:password|passwd|token|secret)=)[^\s&'\"]+",  # of a connection string
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """``text`` with the passwords of URLs and connection strings blotted out."""
    return _SECRETS_IN_TEXT.sub(lambda m: (m["before"] or m["name"]) + REDACTED, text)
