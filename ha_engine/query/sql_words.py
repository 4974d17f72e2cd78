"""Finds the names in a SQL text without parsing it.

The node must know which streams a query reads, and it has no Spark. A column that is named like a
stream counts too, which costs a needless change of digest and nothing else.
"""

from __future__ import annotations

import re

_NOT_CODE = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"",
    re.DOTALL,
)
_COMMENT = re.compile(r"('(?:[^'\\]|\\.)*')|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def code_of(sql: str) -> str:
    """The text in lower case without comments, string literals and the quotes of identifiers."""
    return _NOT_CODE.sub(" ", sql).replace("`", " ").lower()


def without_comments(sql: str) -> str:
    """The text with its literals, comments blanked."""
    return _COMMENT.sub(lambda found: found[1] or " ", sql)


def names_in(sql: str) -> frozenset[str]:
    """Every word of the text, in lower case."""
    return frozenset(_WORD.findall(code_of(sql)))


def watermarked_in(sql: str, stream: str) -> bool:
    """Whether a WATERMARK clause follows the stream itself (``FROM s [AS] x WATERMARK ...``)."""
    pattern = rf"\b{re.escape(stream.lower())}\b(\s+(as\s+)?\w+)?\s+watermark\s+\w"
    return re.search(pattern, code_of(sql)) is not None
