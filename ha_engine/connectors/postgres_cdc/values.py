"""Write the text of one PostgreSQL value as JSON, in the form that the engine expects of an event.

The text is what PostgreSQL's output function returns with the settings of ``server.SETTINGS``. The
engine then decides whether the value fits the stream's column, as for an event over HTTP.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

BOOL, BYTEA, JSON, JSONB, NUMERIC, TIMESTAMPTZ = 16, 17, 114, 3802, 1700, 1184
_DOCUMENTS = frozenset({JSON, JSONB})
NUMBERS = frozenset({20, 21, 23, 26, 700, 701, NUMERIC})
"""The types int8, int2, int4, oid, float4, float8 and numeric."""

Writer: TypeAlias = Callable[[str], str]
"""Writes a value's text as JSON."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class TypeForm:
    """The form of a type's text. A domain has the form of its base type.

    ``base`` is the oid of the type below all domains. ``element`` is the oid of the elements of an
    array, or 0 if the type is no array. ``delimiter`` separates the elements.
    """

    base: int
    element: int = 0
    delimiter: str = ","


def writer_of(oid: int, forms: Mapping[int, TypeForm], target: pa.DataType) -> Writer:
    """The writer of values of type ``oid`` for a column of type ``target``.

    A column of type string gets PostgreSQL's text of any type.
    """
    form = forms.get(oid, TypeForm(oid))
    is_text = pa.types.is_string(target) or pa.types.is_large_string(target)
    if form.base == BOOL:
        return _quoted_boolean if is_text else _boolean
    if is_text:
        return _quoted
    if form.element:
        of = target.value_type if pa.types.is_list(target) else target
        # An array has one type for all its dimensions. A JSON document may be a list itself.
        is_document = forms.get(form.element, TypeForm(form.element)).base in _DOCUMENTS
        while pa.types.is_list(of) and not is_document:
            of = of.value_type
        return _array_writer(writer_of(form.element, forms, of), form.delimiter)
    return _WRITERS.get(form.base, _number if form.base in NUMBERS else _quoted)


def can_hold(target: pa.DataType, oid: int, forms: Mapping[int, TypeForm]) -> bool:
    """Whether a column of type ``target`` can hold values of type ``oid``.

    A single value may still not fit, such as a too large number.
    """
    form, kind = forms.get(oid, TypeForm(oid)), pa.types
    if kind.is_string(target) or kind.is_large_string(target) or form.base in _DOCUMENTS:
        return True
    if kind.is_list(target):
        while kind.is_list(target):
            target = target.value_type
        return bool(form.element) and can_hold(target, form.element, forms)
    if kind.is_boolean(target):
        return form.base == BOOL
    if kind.is_integer(target) or kind.is_floating(target) or kind.is_decimal(target):
        return form.base in NUMBERS
    if kind.is_binary(target):
        return form.base == BYTEA
    return not kind.is_nested(target) and not form.element and form.base not in _NEVER_A_TIME


_NEVER_A_TIME = NUMBERS | {BOOL, BYTEA}


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _quoted_boolean(text: str) -> str:
    return _quoted(_boolean(text))


def _number(text: str) -> str:
    # NaN and Infinity become strings, which no column of numbers takes.
    return text if _NUMBER.fullmatch(text) else _quoted(text)


def _json(text: str) -> str:
    # A raw line break in JSON is a blank, since strings escape theirs.
    return text.replace("\n", " ").replace("\r", " ")


def _binary(text: str) -> str:
    return _quoted(base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode())


def _instant(text: str) -> str:
    return _quoted(text[:-3] + "Z" if text.endswith("+00") else text)


_WRITERS: dict[int, Writer] = {
    BYTEA: _binary,
    JSON: _json,
    JSONB: _json,
    TIMESTAMPTZ: _instant,
}


# In the patterns below, a possessive repetition keeps no state for each character, of which a value
# may have millions.


def _array_writer(write: Writer, delimiter: str) -> Writer:
    separator = re.escape(delimiter)
    token = re.compile(
        rf'(?P<mark>[{{}}{separator}])|"(?P<quoted>(?:[^"\\]++|\\.)*+)"|(?P<bare>[^{{}}"{separator}]+)',
        re.DOTALL,
    )

    def write_array(text: str) -> str:
        # An array whose indexes do not begin at 1 is written as [0:1]={a,b}.
        body = text[text.index("{") :]
        parts = list[str]()
        for found in token.finditer(body):
            if mark := found["mark"]:
                parts.append({"{": "[", "}": "]"}.get(mark, ","))
            elif (bare := found["bare"]) is not None:
                parts.append("null" if bare == "NULL" else write(bare))
            else:
                parts.append(write(_ESCAPED.sub(r"\1", found["quoted"])))
        return "".join(parts)

    return write_array


_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_FIELD = re.compile(r'(?:"((?:[^"]++|"")*+)"|([^,"]*))(,|$)', re.DOTALL)


def fields_of(row: str) -> list[str | None]:
    """Split the text of a row, such as ``(1,"a b",)``, into the texts of its columns."""
    fields, at, body = list[str | None](), 0, row[1:-1]
    while True:
        found = _FIELD.match(body, at)
        if found is None:
            raise ValueError(f"the row {row[:200]!r} has another form")
        quoted, bare, end = found.groups()
        if quoted is not None:
            fields.append(quoted.replace('""', '"').replace("\\\\", "\\"))
        else:
            fields.append(bare or None)
        if not end:
            return fields
        at = found.end()
