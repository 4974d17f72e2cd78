"""Find the names in a SQL text without parsing the text.

The node process must know which streams a query reads, but it does not run Spark. A column that is
named like a stream counts as that stream, which only changes the query's digest needlessly.
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
    """The SQL text in lower case without comments, string literals and quotes of identifiers."""
    return _NOT_CODE.sub(" ", sql).replace("`", " ").lower()


def masked(sql: str) -> str:
    """The SQL text with blanks in place of each character of comments and string literals."""
    return _NOT_CODE.sub(lambda found: " " * len(found[0]), sql)


def closing(code: str, at: int) -> int | None:
    """The place of the parenthesis that closes the one before ``at``, in a masked text."""
    depth = 1
    for place in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return None


def listed(sql: str) -> list[str]:
    """The items of a list with commas, none of an empty text."""
    items, code, begin, depth = list[str](), masked(sql), 0, 0
    for place, character in enumerate(code):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append(sql[begin:place].strip())
            begin = place + 1
    return [*items, sql[begin:].strip()] if sql.strip() else []


def without_comments(sql: str) -> str:
    """The SQL text with its literals, and with blanks in place of comments."""
    return _COMMENT.sub(lambda found: found[1] or " ", sql)


def names_in(sql: str) -> frozenset[str]:
    """Every word of the SQL text, in lower case."""
    return frozenset(_WORD.findall(code_of(sql)))


def watermarked_in(sql: str, stream: str) -> bool:
    """Whether a WATERMARK clause follows the stream itself (``FROM s [AS] x WATERMARK ...``)."""
    pattern = rf"\b{re.escape(stream.lower())}\b(\s+(as\s+)?\w+)?\s+watermark\s+\w"
    return re.search(pattern, code_of(sql)) is not None
