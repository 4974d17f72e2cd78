"""Compile an Avro schema into a function that reads a value of Avro's binary encoding as JSON.

The module reads untrusted bytes, and a message must never end or delay the node. fastavro 1.13
crashes on a schema that contains itself, needs 16 s without the interpreter's lock for a decimal of
200 KB, and accepts an index of an enum below zero (docs/adr/0024-avro-is-read-strictly.md). This
reader refuses such values, and ``avro_schema`` such schemas.

| Avro | JSON |
|---|---|
| bytes, fixed | text in base64 |
| enum | its symbol |
| union | the value of its branch |
| decimal | text with all digits |
| date, timestamps, times | text in ISO 8601; a timestamp that is not local has the zone Z |
| uuid | text |
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, assert_never
from uuid import UUID

from ha_engine.formats.avro_schema import (
    DECIMAL_BYTES_MAX,
    Array,
    AvroType,
    Decimal,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    parsed,
)
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.values import VALUES_MAX

NAME_BYTES_MAX = 4 << 20
"""The most characters that the names in a schema may add to the JSON of one message."""

_LONG_BYTES_MAX = 10
_INT, _LONG = 1 << 31, 1 << 63
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1)  # a local timestamp has no zone


class AvroInput:
    """The bytes of one message, read from the start. All methods raise BadRow."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._values, self._names = data, 0, 0, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def count(self, values: int = 1) -> None:
        """Count values of the message, of which there may be VALUES_MAX."""
        self._values += values
        if self._values > VALUES_MAX:
            raise BadRow(f"the message has more than {VALUES_MAX} values")

    def count_names(self, characters: int) -> None:
        """Count characters of the schema that the message repeats, at most NAME_BYTES_MAX."""
        self._names += characters
        if self._names > NAME_BYTES_MAX:
            raise BadRow("the message repeats the names of its schema too often")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise BadRow(f"the message ends within a value at byte {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def long(self) -> int:
        """A zigzag varint."""
        value = shift = 0
        for byte in self._data[self._at : self._at + _LONG_BYTES_MAX]:
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._within((value >> 1) ^ -(value & 1), _LONG)
        raise BadRow(f"the message has no whole number at byte {self._at}")

    def short(self) -> int:
        """A zigzag varint of at most 32 bits."""
        return self._within(self.long(), _INT)

    def _within(self, value: int, limit: int) -> int:
        if -limit <= value < limit:
            return value
        raise BadRow(f"the number before byte {self._at} of the message is out of range")


Read = Callable[[AvroInput], Any]


def compiled(schema: Any) -> Read:
    """Return a function that reads one value of ``schema``, a parsed JSON schema.

    Raises BadRow if the schema is not valid, or contains itself.
    """
    return read_of(parsed(schema))


def read_of(of: AvroType) -> Read:
    """Return a function that reads one value of the type ``of``."""
    return _Compiler().read_of(of)


class _Compiler:
    """Compiles one type. ``_reads`` has each record once, since its name may occur many times."""

    def __init__(self) -> None:
        self._reads: dict[AvroType, Read] = {}

    def read_of(self, of: AvroType) -> Read:
        if of not in self._reads:
            self._reads[of] = self._compiled(of)
        return self._reads[of]

    def _compiled(self, of: AvroType) -> Read:
        match of:
            case Primitive(kind, logical):
                return _primitive(kind, logical)
            case Decimal():
                return _decimal(of)
            case Fixed():
                return _fixed(of)
            case Enum():
                return _enum(of)
            case Array(items):
                return _array(self.read_of(items))
            case Map(values):
                return _map(self.read_of(values))
            case Union(branches):
                return _union([self.read_of(one) for one in branches])
            case Record():
                return self._record(of)
            case _:
                assert_never(of)

    def _record(self, of: Record) -> Read:
        parts = [(field.name, self.read_of(field.type)) for field in of.fields]
        characters = sum(len(name) for name, _ in parts)

        def read(data: AvroInput) -> dict[str, Any]:
            data.count(len(parts))
            data.count_names(characters)
            return {name: read_one(data) for name, read_one in parts}

        return read


# -- values ----------------------------------------------------------------------------------------


def _null(data: AvroInput) -> None:
    return None


def _boolean(data: AvroInput) -> bool:
    byte = data.take(1)[0]
    if byte > 1:
        raise BadRow(f"the message has the byte {byte} for a boolean")
    return byte == 1


def _float(data: AvroInput) -> float:
    return float(_FLOAT.unpack(data.take(4))[0])


def _double(data: AvroInput) -> float:
    return float(_DOUBLE.unpack(data.take(8))[0])


def _bytes(data: AvroInput) -> bytes:
    return data.take(data.long())


def _string(data: AvroInput) -> str:
    try:
        return data.take(data.long()).decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"a text of the message is not UTF-8: {error.reason}") from None


def _base64(data: AvroInput) -> str:
    return base64.b64encode(_bytes(data)).decode()


_PLAIN: Mapping[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": AvroInput.short,
    "long": AvroInput.long,
    "float": _float,
    "double": _double,
    "bytes": _base64,
    "string": _string,
}


def _enum(of: Enum) -> Read:
    symbols = of.symbols

    def read(data: AvroInput) -> str:
        index = data.short()
        if not 0 <= index < len(symbols):
            raise BadRow(f"the message has symbol {index} of the enum {of.name}")
        data.count_names(len(symbols[index]))
        return symbols[index]

    return read


def _union(branches: list[Read]) -> Read:
    def read(data: AvroInput) -> Any:
        index = data.short()
        if not 0 <= index < len(branches):
            raise BadRow(f"the message has branch {index} of a union of {len(branches)}")
        return branches[index](data)

    return read


def _blocks(data: AvroInput, read_item: Callable[[], None]) -> None:
    """Read the blocks of an array or map. A count below zero comes before the block's size."""
    while count := data.long():
        if count < 0:
            data.long()
        data.count(abs(count))
        for _ in range(abs(count)):
            read_item()


def _array(read_item: Read) -> Read:
    def read(data: AvroInput) -> list[Any]:
        found: list[Any] = []
        _blocks(data, lambda: found.append(read_item(data)))
        return found

    return read


def _map(read_value: Read) -> Read:
    def read(data: AvroInput) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def read_entry() -> None:
            key = _string(data)
            if key in found:
                raise BadRow(f"a map of the message has the key {key[:100]!r} twice")
            found[key] = read_value(data)

        _blocks(data, read_entry)
        return found

    return read


def _fixed(of: Fixed) -> Read:
    if of.is_uuid:
        return lambda data: str(UUID(bytes=data.take(of.size)))
    return lambda data: base64.b64encode(data.take(of.size)).decode()


# -- logical types ---------------------------------------------------------------------------------


def _primitive(kind: str, logical: str | None) -> Read:
    """The reader of a primitive type. An unknown logical type is ignored, as the specification
    demands."""
    match kind, logical:
        case "int", "date":
            return lambda data: _in_calendar(_date, data.short())
        case "int", "time-millis":
            return lambda data: _in_calendar(_time, data.short() * 1_000)
        case "long", "time-micros":
            return lambda data: _in_calendar(_time, data.long())
        case "long", "timestamp-millis":
            return lambda data: _in_calendar(_timestamp, data.long() * 1_000)
        case "long", "timestamp-micros":
            return lambda data: _in_calendar(_timestamp, data.long())
        case "long", "timestamp-nanos":
            return lambda data: _in_calendar(_timestamp, _micros(data.long()))
        case "long", "local-timestamp-millis":
            return lambda data: _in_calendar(_local, data.long() * 1_000)
        case "long", "local-timestamp-micros":
            return lambda data: _in_calendar(_local, data.long())
        case "long", "local-timestamp-nanos":
            return lambda data: _in_calendar(_local, _micros(data.long()))
        case _:
            return _PLAIN[kind]


def _decimal(of: Decimal) -> Read:
    precision, scale, size = of.precision, of.scale, of.size

    def read(data: AvroInput) -> str:
        unscaled = _bytes(data) if size is None else data.take(size)
        if not 0 < len(unscaled) <= DECIMAL_BYTES_MAX:
            raise BadRow(f"the message has a decimal of {len(unscaled)} bytes")
        number = int.from_bytes(unscaled, signed=True)
        digits = str(abs(number))
        if len(digits) > precision:
            raise BadRow(f"the message has a decimal of more than {precision} digits")
        digits = digits.rjust(scale + 1, "0")
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        sign = "-" if number < 0 else ""
        return f"{sign}{whole}.{fraction}" if scale else f"{sign}{whole}"

    return read


def _micros(nanoseconds: int) -> int:
    if nanoseconds % 1_000:
        raise BadRow("a timestamp of the message has more than 6 fractional digits")
    return nanoseconds // 1_000


def _in_calendar(form: Callable[[int], str], value: int) -> str:
    try:
        return form(value)
    except (OverflowError, ValueError):
        raise BadRow(f"a time of the message is out of range: {value}") from None


def _date(days: int) -> str:
    return date.fromordinal(date(1970, 1, 1).toordinal() + days).isoformat()


def _time(microseconds: int) -> str:
    if not 0 <= microseconds < 86_400_000_000:
        raise ValueError(microseconds)
    seconds, rest = divmod(microseconds, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest).isoformat()


def _timestamp(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=UTC).isoformat()


def _local(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
