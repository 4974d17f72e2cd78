"""Decode a request of Prometheus remote write, 1.0 or 2.0, into one record batch of the stream's
schema.

Each sample is a row. The columns are found by their names:

``time``        the sample's time, a timestamp
``value``       the sample's value, a double; null unless the value is a finite number
``non_finite``  null for a finite number, else NaN, Infinity, -Infinity or stale, a string
``metric``      the name of the metric, a string
``labels``      all other labels of the series as a JSON object, sorted by name, a string
``label_NAME``  the label NAME of the series, a string

The stream must have ``time`` and ``value``. A label without a column, exemplars and metadata are
not stored. A request with native histograms is refused.

The engine does not trust a body. A field of two bytes takes fifty bytes in memory, so this module
splits the message lazily and limits its series, its symbols, the bytes of a series, and the bytes
of the labels that rows repeat, each before it allocates memory for them.

Specifications: https://prometheus.io/docs/specs/prw/remote_write_spec/ and remote_write_spec_2_0/.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from ha_engine.errors import InvalidEvents, PayloadTooLarge, UnsupportedFormat
from ha_engine.formats.arrow_types import converts_to
from ha_engine.formats.varint import read_varint
from ha_engine.receive.arrow import ArrowReader
from ha_engine.receive.columns import ColumnReader
from ha_engine.receive.group import REQUEST_BYTES_MAX
from ha_engine.v1.remote_write_pb2 import LabelledSeries, ReferencingSeries, SeriesSample

TIME, VALUE, NON_FINITE, METRIC, LABELS = "time", "value", "non_finite", "metric", "labels"
LABEL = "label_"
STALE = "stale"
"""The column ``non_finite`` of the sample that Prometheus sends when a series ends. The others are
``NaN``, ``Infinity`` and ``-Infinity``."""
SERIES_BYTES_MAX = 1 << 20
"""The most bytes of one series, and of its labels. Prometheus sends one sample of each series in a
request."""
LABELS_MAX = 500_000
"""The most labels of all series of a request."""
FIELDS_MAX = 500_000
"""The most series, symbols and metadata of a request. Prometheus sends a few thousand."""

_NAME = "__name__"
_STALE_BITS = 0x7FF0000000000002
_TIME_TYPE = pa.timestamp("ms", tz="UTC")
_MEDIA_TYPE = "application/x-protobuf"


class Message(Enum):
    """The messages of remote write, by the parameter ``proto`` of the content type."""

    WRITE_REQUEST = "prometheus.WriteRequest"
    REQUEST_2 = "io.prometheus.write.v2.Request"


class _Fields(NamedTuple):
    """The numbers of the fields of a message; None for a field that it lacks."""

    series: int
    symbols: int | None = None
    metadata: int | None = None


_FIELDS = {
    Message.WRITE_REQUEST: _Fields(series=1, metadata=3),
    Message.REQUEST_2: _Fields(series=5, symbols=4),
}


def message_of(content_type: str) -> Message:
    """The message that a Content-Type header names. Raises UnsupportedFormat."""
    name, *parameters = (part.strip() for part in content_type.split(";"))
    wanted = Message.WRITE_REQUEST.value
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "proto":
            wanted = value.strip().strip('"')
    if name.lower() == _MEDIA_TYPE:
        for message in Message:
            if message.value == wanted:
                return message
    known = " or ".join(f"proto={message.value}" for message in Message)
    raise UnsupportedFormat(
        f"content type {content_type[:80]!r} is not supported; send {_MEDIA_TYPE} with {known}"
    )


class RemoteWriteDecoder:
    """Decodes requests for one stream, each with at most ``rows_max`` samples."""

    def __init__(self, schema: pa.Schema, rows_max: int) -> None:
        self._schema, self._rows_max = schema, rows_max
        self._misfit = _misfit(schema)
        self._texts = [name for name in schema.names if _is_text(name)]
        self._arrow = ArrowReader(schema, [ColumnReader(column) for column in schema])

    def decode(self, body: bytes, message: Message) -> pa.RecordBatch:
        """Decode all samples of ``body``, in order, into one batch with exactly the stream's
        schema. The batch of a request without samples has no rows.

        Raises PayloadTooLarge, or InvalidEvents with the number of the first bad sample.
        """
        if self._misfit is not None:
            raise InvalidEvents(self._misfit)
        samples = _Samples(self._texts, self._rows_max)
        try:
            series, symbols = self._split(body, _FIELDS[message])
        except (DecodeError, UnicodeDecodeError) as error:
            raise InvalidEvents(f"the body is no {message.value}: {error}") from None
        labels = 0
        try:
            for one in series:
                read = _series_of(one, message, symbols)
                labels += len(read.labels)
                if labels > LABELS_MAX:
                    raise PayloadTooLarge(f"a request has at most {LABELS_MAX} labels; send fewer")
                samples.add(read)
        except (DecodeError, _BadSeries) as error:
            raise InvalidEvents(str(error), len(samples.times)) from None
        return self._arrow.shaped(samples.batch(self._schema.names))

    def _split(self, body: bytes, fields: _Fields) -> tuple[list[bytes], list[str]]:
        """The series of a request, and its symbols. Raises PayloadTooLarge, DecodeError,
        UnicodeDecodeError."""
        series, symbols, is_known = list[bytes](), list[str](), not body
        for count, (number, value) in enumerate(_fields(body)):
            if count == FIELDS_MAX:
                raise PayloadTooLarge(f"a request has at most {FIELDS_MAX} fields; send fewer")
            if value is None:
                continue
            is_known = is_known or number in fields
            if number == fields.series:
                if len(value) > SERIES_BYTES_MAX:
                    raise _too_large(SERIES_BYTES_MAX)
                series.append(value)
                if len(series) > self._rows_max:
                    raise _too_many(self._rows_max)
            elif number == fields.symbols:
                symbols.append(value.decode())
        if not is_known:
            raise DecodeError("it has neither series nor metadata")
        return series, symbols


def _misfit(schema: pa.Schema) -> str | None:
    """Say why a stream with ``schema`` cannot take samples, or return None if it can.

    The answer depends on no sample, so that a stream that fits continues to fit.
    """
    for name in (TIME, VALUE):
        if name not in schema.names:
            return f"the stream takes no samples of Prometheus, since it has no column {name!r}"
    for column in schema:
        given = _given_type(column.name)
        if given is None and not column.nullable:
            return f"no sample of Prometheus has the column {column.name!r}; let it be null"
        if given is not None and not converts_to(given, column.type):
            return f"column {column.name!r} is {column.type}, and samples have {given}"
        if column.name in (VALUE, NON_FINITE) and not column.nullable:
            return f"column {column.name!r} is null for some samples; let it be null"
    return None


def _is_text(name: str) -> bool:
    return name in (METRIC, LABELS) or name.startswith(LABEL)


def _given_type(name: str) -> pa.DataType | None:
    """The type that samples have for a column, or None if they lack it."""
    if _is_text(name) or name == NON_FINITE:
        return pa.string()
    return {TIME: _TIME_TYPE, VALUE: pa.float64()}.get(name)


# -- series ----------------------------------------------------------------------------------------


class _BadSeries(Exception):
    """A series breaks a rule of the specification. The text of the error says which."""


class _Series(NamedTuple):
    """One series of a request. The labels may have empty values."""

    labels: dict[str, str]
    samples: Sequence[SeriesSample]


def _series_of(encoded: bytes, message: Message, symbols: Sequence[str]) -> _Series:
    """Decode one series of a request. Raises DecodeError, _BadSeries, PayloadTooLarge."""
    pairs: list[tuple[str, str]]
    series: LabelledSeries | ReferencingSeries
    match message:
        case Message.WRITE_REQUEST:
            series = LabelledSeries.FromString(encoded)
            pairs = [(label.name, label.value) for label in series.labels]
        case Message.REQUEST_2:
            series = ReferencingSeries.FromString(encoded)
            pairs = _pairs(series.labels_refs, symbols)
    if series.histograms:
        raise _BadSeries(
            "the request has native histograms, which the engine does not store; set "
            "send_native_histograms to false in the section remote_write of the sender"
        )
    return _Series(_labels(pairs), series.samples)


def _pairs(refs: Sequence[int], symbols: Sequence[str]) -> list[tuple[str, str]]:
    """The labels whose names and values ``refs`` refer to in turn. Raises _BadSeries."""
    if len(refs) % 2:
        raise _BadSeries("a series has a label without a value")
    try:
        found = [symbols[ref] for ref in refs]
    except IndexError:
        raise _BadSeries("a label of a series refers to a symbol that the request lacks") from None
    return list(zip(found[::2], found[1::2], strict=True))


def _labels(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The labels by name. Raises _BadSeries, PayloadTooLarge."""
    # Many labels of remote write 2.0 may refer to one long symbol.
    if sum(len(name) + len(value) for name, value in pairs) > SERIES_BYTES_MAX:
        raise _too_large(SERIES_BYTES_MAX)
    labels = dict[str, str]()
    for name, value in pairs:
        if name in labels:
            raise _BadSeries(f"a series has the label {name[:60]!r} twice")
        labels[name] = value
    if "" in labels:
        raise _BadSeries("a series has a label without a name")
    return labels


# -- columns ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Samples:
    """The samples of the series so far. ``columns`` are the columns of labels.

    ``texts`` has the values of these columns for each series that has samples. ``series`` has for
    each sample the index of its series. ``size`` is the number of bytes of the columns of labels.
    """

    columns: Sequence[str]
    rows_max: int
    texts: list[list[bytes | None]] = field(default_factory=list)
    series: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    size: int = 0

    def add(self, series: _Series) -> None:
        """Add the samples of ``series``. Raises PayloadTooLarge."""
        count = len(series.samples)
        if not count:
            return
        if len(self.times) + count > self.rows_max:
            raise _too_many(self.rows_max)
        texts = [_text(name, series.labels) for name in self.columns]
        # Each sample repeats the labels of its series.
        self.size += count * sum(len(text) for text in texts if text is not None)
        if self.size > REQUEST_BYTES_MAX:
            raise PayloadTooLarge(
                f"the labels of the samples have more than {REQUEST_BYTES_MAX} bytes; send several "
                "smaller requests"
            )
        self.series += [len(self.texts)] * count
        self.texts.append(texts)
        for sample in series.samples:
            self.times.append(sample.timestamp)
            self.values.append(sample.value)

    def batch(self, wanted: Sequence[str]) -> pa.RecordBatch:
        """The samples as a batch with those of the columns ``wanted`` that samples have."""
        kinds = [None if math.isfinite(value) else _kind(value) for value in self.values]
        finite = [
            value if kind is None else None for value, kind in zip(self.values, kinds, strict=True)
        ]
        found = {
            TIME: pa.array(self.times, pa.int64()).view(_TIME_TYPE),
            VALUE: pa.array(finite, pa.float64()),
        }
        if NON_FINITE in wanted:
            found[NON_FINITE] = pa.array(kinds, pa.string())
        series = pa.array(self.series, pa.int64())
        for at, name in enumerate(self.columns):
            found[name] = pa.array([texts[at] for texts in self.texts], pa.string()).take(series)
        return pa.RecordBatch.from_pydict(found)


def _text(column: str, labels: dict[str, str]) -> bytes | None:
    """The value of a column of labels. A label with an empty value counts as absent."""
    if column == LABELS:
        others = {name: labels[name] for name in sorted(labels) if name != _NAME and labels[name]}
        return json.dumps(others, ensure_ascii=False, separators=(",", ":")).encode()
    text = labels.get(_NAME if column == METRIC else column.removeprefix(LABEL))
    return text.encode() if text else None


def _kind(value: float) -> str:
    """The name of a value that is no finite number."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return STALE if bits == _STALE_BITS else "NaN"


def _too_many(rows_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"one request has at most {rows_max} samples and as many series; send several smaller "
        "requests"
    )


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a series has more than {bytes_max} bytes; send fewer samples of a series in a request"
    )


# -- Protobuf --------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number and the value of each field of ``message``. The value is None if the field
    does not consist of bytes. Raises DecodeError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                _, end = _varint(message, at)
            case 1:
                end = at + 8
            case 2:
                length, at = _varint(message, at)
                end = at + length
            case 5:
                end = at + 4
            case _:
                raise DecodeError("a field has an unknown wire type")
        if end > len(message):
            raise DecodeError("it ends within a field")
        if tag < 8:
            raise DecodeError("a field has the number 0")
        yield tag >> 3, message[at:end] if tag & 7 == 2 else None
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint as ``read_varint`` does. Raises DecodeError."""
    try:
        return read_varint(data, at)
    except ValueError as error:
        raise DecodeError(str(error)) from None
