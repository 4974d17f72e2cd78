"""Turn CloudEvents 1.0 into the JSON rows of a stream, for the three content modes of the HTTP
binding.

The data of an event is a JSON object, whose fields are columns, or an array of such objects, each
of which is a row. A column with the name ``ce_NAME`` gets the attribute NAME as text. An attribute
without a column is not stored. The data cannot set a column of an attribute: a field of that name
is refused as a second one. A stream with the column ``ce_data`` gets the data in this column,
whatever its content type, as text or, if the column is binary, as bytes.

This module knows no types: the rows go to the stream's decoder, which decides what an event is.

Specifications: https://github.com/cloudevents/spec/tree/v1.0.2/cloudevents (spec.md,
formats/json-format.md and bindings/http-protocol-binding.md).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from ha_engine.errors import InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.formats.json_rows import BadRow, members_of, objects_of
from ha_engine.receive.decode import Lines, too_many_events

COLUMN, DATA_COLUMN = "ce_", "ce_data"
HEADER = b"ce-"
ROWS_BYTES_MAX = 64 << 20
"""The most bytes of the rows of a request. The rows of an event repeat its attributes."""

_SPECVERSION, _CONTENT_TYPE = "specversion", "datacontenttype"
_REQUIRED = "id", "source", "type"
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\(.)")
_EMPTY_OBJECT = re.compile(r"\{[ \t\r\n]*\}")


class Mode(Enum):
    """The content modes of the HTTP binding, by content type. The content type of an event in
    binary mode is that of its data."""

    BINARY = ""
    STRUCTURED = "application/cloudevents+json"
    BATCH = "application/cloudevents-batch+json"


class Head(NamedTuple):
    """The mode of a request, and in binary mode the attributes of its event.

    ``signed`` are the headers of these attributes, since they belong to the payload.
    """

    mode: Mode
    attributes: Mapping[str, str]
    signed: bytes = b""


def head_of(headers: Mapping[bytes, bytes]) -> Head:
    """Read the headers of a request, whose names are in lower case. Raises UnsupportedFormat,
    InvalidEvents."""
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    media_type = _media_type(content_type)
    for mode in (Mode.STRUCTURED, Mode.BATCH):
        if media_type == mode.value:
            _require_utf8(content_type)
            return Head(mode, {})
    if media_type.startswith("application/cloudevents"):
        raise UnsupportedFormat(
            f"content type {media_type[:80]!r} is not supported; send {Mode.STRUCTURED.value}, "
            f"{Mode.BATCH.value}, or the event in binary mode"
        )
    found = {name: value for name, value in headers.items() if name.startswith(HEADER)}
    try:
        attributes = {
            name.removeprefix(HEADER).decode("latin-1"): _value_of(value)
            for name, value in found.items()
        }
        if content_type:
            attributes[_CONTENT_TYPE] = content_type
            if _is_json(content_type):
                _require_utf8(content_type)
        _require_attributes(attributes)
    except BadRow as bad:
        raise InvalidEvents(f"the headers have no CloudEvent: {bad}") from None
    signed = b"".join(b"%s:%s\n" % (name, found[name]) for name in sorted(found))
    return Head(Mode.BINARY, attributes, signed)


def _value_of(header: bytes) -> str:
    """The attribute that a header has, which may be quoted, and is percent-encoded. Raises
    BadRow."""
    quoted = _QUOTED.fullmatch(header)
    value = header if quoted is None else _ESCAPED.sub(rb"\1", quoted[1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadRow(f"the header {str(header[:60])[1:]} is not UTF-8") from None


def _require_attributes(attributes: Mapping[str, str]) -> None:
    """Raise BadRow if an attribute is missing that every event has."""
    version = attributes.get(_SPECVERSION)
    if version != "1.0":
        raise BadRow(f"its specversion is {version!r}, expected '1.0'")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise BadRow(f"it has no {name}")


def _require_utf8(content_type: str) -> None:
    parameters = content_type.partition(";")[2].lower().replace(" ", "").replace('"', "")
    if "charset=" in parameters and "charset=utf-8" not in parameters:
        raise UnsupportedFormat("events must be in UTF-8; remove the charset parameter")


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(content_type: str) -> bool:
    media_type = _media_type(content_type)
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")


# -- events ----------------------------------------------------------------------------------------


class _Event(NamedTuple):
    """An event. Its data is text or bytes; None if it has none."""

    attributes: Mapping[str, str]
    data: str | bytes | None
    is_json: bool


class EventLines:
    """Turns requests for one stream into lines of JSON, each request with at most ``rows_max``
    rows."""

    def __init__(self, schema: pa.Schema, rows_max: int) -> None:
        self._rows_max = rows_max
        names = [name for name in schema.names if name.startswith(COLUMN) and name != DATA_COLUMN]
        self._attributes = {name: name.removeprefix(COLUMN) for name in names}
        self._wanted = {*self._attributes.values(), *_REQUIRED, _SPECVERSION, _CONTENT_TYPE}
        self._keeps_data = DATA_COLUMN in schema.names
        self._keeps_bytes = self._keeps_data and pa.types.is_binary(schema.field(DATA_COLUMN).type)

    def of(self, body: bytes, head: Head) -> Lines | None:
        """The rows of a request, or None if it is a batch without events. Raises InvalidEvents,
        PayloadTooLarge."""
        lines, size = list[str](), 0
        try:
            for event in self._events(body, head):
                for line in self._rows(event):
                    lines.append(line)
                    size += len(line)
                    self._require_room(len(lines), size)
        except BadRow as bad:
            raise InvalidEvents(f"the CloudEvent is refused: {bad}", len(lines)) from None
        return Lines.of("\n".join(lines).encode()) if lines else None

    def _events(self, body: bytes, head: Head) -> Iterator[_Event]:
        if head.mode is Mode.BINARY:
            is_json = _is_json(head.attributes.get(_CONTENT_TYPE, ""))
            yield _Event(head.attributes, body or None, is_json)
            return
        text = _text(body)
        starts, what = ("{", "an object") if head.mode is Mode.STRUCTURED else ("[", "an array")
        if not text.lstrip(" \t\r\n").startswith(starts):
            raise InvalidEvents(f"the body is not {what}, as {head.mode.value} is")
        count = 0
        try:
            for event in objects_of(text):
                yield self._structured(event)
                count += 1
        except json.JSONDecodeError as error:
            reason = f"{error.msg} at line {error.lineno} column {error.colno}"
            raise InvalidEvents(f"after {count} CloudEvents: {reason}") from None
        except RecursionError:
            raise BadRow("it is nested too deep") from None

    def _structured(self, text: str) -> _Event:
        """The event in JSON format that ``text`` is. Raises BadRow."""
        members = dict[str, str]()
        for name, value in members_of(text):
            if name in members:
                raise BadRow(f"it has {name[:60]!r} twice")
            members[name] = value
        attributes = {
            name: found
            for name in members.keys() & self._wanted
            if (found := _attribute(name, members[name])) is not None
        }
        _require_attributes(attributes)
        is_json = _is_json(attributes.get(_CONTENT_TYPE, "application/json"))
        return _Event(attributes, _data(members, is_json=is_json), is_json)

    def _rows(self, event: _Event) -> Iterator[str]:
        """The rows of one event. Raises BadRow."""
        first: dict[str, str | None] = {
            column: event.attributes.get(name) for column, name in self._attributes.items()
        }
        if self._keeps_data:
            yield json.dumps(first | {DATA_COLUMN: self._kept(event.data)})
        elif event.data is None:
            yield json.dumps(first)
        elif not event.is_json:
            raise BadRow(
                f"its data is not JSON but {event.attributes.get(_CONTENT_TYPE, 'of no type')!r}; "
                f"declare the column {DATA_COLUMN} to store such data"
            )
        else:
            start = json.dumps(first)
            for row in _objects(event.data):
                yield _joined(start, row)

    def _kept(self, data: str | bytes | None) -> str | None:
        """The column ``ce_data`` as JSON has it. Raises BadRow."""
        if data is None:
            return None
        try:
            if self._keeps_bytes:
                return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()
            return data if isinstance(data, str) else data.decode()
        except UnicodeEncodeError:
            raise BadRow("its data has a lone surrogate") from None
        except UnicodeDecodeError:
            raise BadRow(
                f"its data is not UTF-8; declare the column {DATA_COLUMN} as binary"
            ) from None

    def _require_room(self, rows: int, size: int) -> None:
        if rows > self._rows_max:
            raise too_many_events(self._rows_max)
        if size > ROWS_BYTES_MAX:
            raise PayloadTooLarge(
                f"the rows of the CloudEvents have more than {ROWS_BYTES_MAX} bytes; send several "
                "smaller requests"
            )


def _attribute(name: str, value: str) -> str | None:
    """The canonical text of an attribute that is JSON; None if it is null. Raises BadRow."""
    match _decoded(value):
        case None:
            return None
        case bool() as truth:
            return "true" if truth else "false"
        case str() as text:  # a number is the text of itself
            return text
        case _:
            raise BadRow(f"its attribute {name[:60]!r} is {value[:60]}, which is no single value")


def _data(members: Mapping[str, str], *, is_json: bool) -> str | bytes | None:
    """The data among the members of an event in JSON format. Raises BadRow."""
    text, encoded = members.get("data"), members.get("data_base64")
    if text is not None and encoded is not None:
        raise BadRow("it has both data and data_base64")
    if encoded is not None:
        return _bytes(_decoded(encoded))
    if text is None or text == "null":
        return None
    if is_json:
        return text
    if not text.startswith('"'):
        raise BadRow("its data is no string, but its datacontenttype is not JSON")
    found: str = _decoded(text)
    return found


def _bytes(encoded: Any) -> bytes | None:
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        raise BadRow("its data_base64 is not in base64") from None


def _decoded(value: str) -> Any:
    """Decode a valid JSON value. A number is the text of itself."""
    return json.loads(value, parse_int=str, parse_float=str, parse_constant=str)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidEvents(f"byte {error.start} of the body is not UTF-8") from None


def _objects(data: str | bytes) -> Iterator[str]:
    """The objects that the JSON ``data`` has, at least one. Raises BadRow."""
    found = False
    try:
        for row in objects_of(data if isinstance(data, str) else data.decode()):
            found = True
            yield row
    except UnicodeDecodeError as error:
        raise BadRow(f"byte {error.start} of its data is not UTF-8") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno} column {error.colno}"
        raise BadRow(f"its data is no JSON object: {reason}") from None
    except RecursionError:
        raise BadRow("its data is nested too deep") from None
    if not found:
        raise BadRow("its data is an array without objects, so it has no row")


def _joined(start: str, row: str) -> str:
    """Join the two JSON objects to one."""
    if start == "{}":
        return row
    if _EMPTY_OBJECT.fullmatch(row):
        return start
    return f"{start[:-1]},{row[1:]}"
