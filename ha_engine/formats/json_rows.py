"""Split JSON text into the texts of its objects, with unchanged values.

Every text format becomes JSON objects, so that one decoder decides what an event is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator

_BLANKS = re.compile(r"[ \t\r\n]*")
# A number stays as it was written, and Python's limit on the digits of an integer does not apply.
_SPLITTER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


class BadRow(Exception):
    """A part of a file or message that is no row. The text of the error says why.

    ``raw`` is that part, or empty if the part is the whole.
    """

    def __init__(self, reason: str, raw: bytes = b"") -> None:
        super().__init__(reason)
        self.raw = raw


def objects_of(text: str) -> Iterator[str]:
    """Yield each object of a JSON array, or the single object that ``text`` is, on one line.

    Raises JSONDecodeError, and RecursionError when an object is nested too deep.
    """
    return (one.translate(_ONE_LINE) for one in _elements(text))


def members_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each member of a JSON object and the text of its value, unchanged.

    ``text`` is an object that ``objects_of`` yielded. Two members may have the same name.
    """
    at = _skip(text, 1)
    while not text.startswith("}", at):
        name, at = _SPLITTER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        at = _SPLITTER.raw_decode(text, start)[1]
        yield name, text[start:at]
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)


def _elements(text: str) -> Iterator[str]:
    at = _skip(text, 0)
    if text.startswith("[", at):
        end = yield from _elements_of_array(text, at)
    else:
        end = _end_of_object(text, at)
        yield text[at:end]
    if _skip(text, end) != len(text):
        raise json.JSONDecodeError("Extra text", text, end)


def _elements_of_array(text: str, at: int) -> Generator[str, None, int]:
    """Yield the objects of the JSON array that starts at index ``at``, and return the index of its
    end."""
    at = _skip(text, at + 1)
    if text.startswith("]", at):
        return at + 1
    while True:
        end = _end_of_object(text, at)
        yield text[at:end]
        at = _skip(text, end)
        if text.startswith("]", at):
            return at + 1
        if not text.startswith(",", at):
            raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        at = _skip(text, at + 1)


def _end_of_object(text: str, at: int) -> int:
    if not text.startswith("{", at):
        raise json.JSONDecodeError("Expecting an event, which is an object,", text, at)
    return _SPLITTER.raw_decode(text, at)[1]


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()
