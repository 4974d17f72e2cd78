"""Read Protobuf messages of one type, which a file of descriptors defines.

``protoc --include_imports --descriptor_set_out=orders.desc orders.proto`` writes such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ha_engine.errors import ConfigError
from ha_engine.formats.json_rows import BadRow
from ha_engine.formats.registry import framed
from ha_engine.formats.values import VALUES_MAX, json_object
from ha_engine.formats.varint import read_varint

TIMESTAMP, WRAPPERS = "google.protobuf.Timestamp", "google/protobuf/wrappers.proto"
_NANOS_OF_A_MICROSECOND = 1_000
_NESTED_MAX = 32


class ProtobufMessages:
    """Messages of the type ``name``, such as shop.Order.

    ``is_registered`` says whether each message begins with the id of its schema in a schema
    registry, and with the position of its type in that schema. Protobuf finds fields by number, so
    the schema in the registry need not be read.
    """

    def __init__(self, descriptor_file: Path, name: str, *, is_registered: bool = False) -> None:
        """Raises ConfigError."""
        self._type = type_in(descriptor_file, name)
        self._position = position_of(self._type.DESCRIPTOR) if is_registered else None

    def rows(self, message: bytes) -> Iterator[bytes]:
        """Yield ``message`` as JSON. Raises BadRow."""
        body = message if self._position is None else self._without_head(message)
        parsed = self._type()
        name = parsed.DESCRIPTOR.full_name
        try:
            parsed.ParseFromString(body)
        except DecodeError as error:
            raise BadRow(f"the message is no {name}: {error}") from None
        if not parsed.IsInitialized():
            raise BadRow(f"the message lacks a required field of {name}")
        yield json_object(_Values().of(parsed))

    def _without_head(self, message: bytes) -> bytes:
        """Remove the schema's id, and the position of the message's type in the schema."""
        _, body = framed(message)
        count, at = _zigzag(body, 0)
        if not 0 <= count <= _NESTED_MAX:
            raise BadRow("the message does not name its type after the schema's id")
        position = []
        for _ in range(count):
            index, at = _zigzag(body, at)
            position.append(index)
        # An empty list is short for the first type.
        if tuple(position or (0,)) != self._position:
            raise BadRow(
                f"the message has type {position or [0]} of its schema, and "
                f"{self._type.DESCRIPTOR.full_name} is type {list(self._position or ())}"
            )
        return body[at:]


def position_of(of: Any) -> tuple[int, ...]:
    """The index of a type in its file, or in the type around it, from outside to inside."""
    around = of.containing_type
    if around is None:
        return (list(of.file.message_types_by_name).index(of.name),)
    return (*position_of(around), list(around.nested_types_by_name).index(of.name))


def written_position(position: tuple[int, ...]) -> bytes:
    """The bytes between the id of a schema and a message of the type at ``position`` in it."""
    if position == (0,):
        return b"\0"  # short for the first type
    return b"".join(map(_as_varint, (len(position), *position)))


def _as_varint(value: int) -> bytes:
    """Write a whole number that is not negative as a zigzag varint."""
    out, rest = bytearray(), value << 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def type_in(descriptor_file: Path, name: str) -> type[Message]:
    """The message type ``name`` in a file of descriptors. Raises ConfigError."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_file.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except OSError as error:
        raise ConfigError(f"the descriptors {descriptor_file} cannot be read: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{descriptor_file} has no message type {name}") from error
    except (DecodeError, TypeError) as error:
        raise ConfigError(
            f"{descriptor_file} is not a file of descriptors with its imports: {error}; make it "
            "with protoc --include_imports --descriptor_set_out"
        ) from error


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint at index ``at``; return it and the index after it. Raises BadRow."""
    try:
        value, at = read_varint(data, at)
    except ValueError:
        raise BadRow("the message does not name its type after the schema's id") from None
    return (value >> 1) ^ -(value & 1), at


class _Values:
    """Turns one message into values of JSON. A message may have VALUES_MAX values, since each empty
    message of a few bytes has all of its fields."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, message: Message) -> dict[str, Any]:
        """Every field by its name. A field that can be absent and is absent is left out. Raises
        BadRow."""
        _require_known_fields(message)
        self._add(len(message.DESCRIPTOR.fields))
        found = {}
        for field in message.DESCRIPTOR.fields:
            if field.has_presence and not message.HasField(field.name):
                continue
            found[field.name] = self._value(field, getattr(message, field.name))
        return found

    def _add(self, values: int) -> None:
        self._count += values
        if self._count > VALUES_MAX:
            raise BadRow(f"the message has more than {VALUES_MAX} values")

    def _value(self, field: Any, value: Any) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            self._add(len(value))
            return {_key(key): self._single(of, value[key]) for key in value}
        if field.is_repeated:
            self._add(len(value))
            return [self._single(field, one) for one in value]
        return self._single(field, value)

    def _single(self, field: Any, value: Any) -> Any:
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return named.name if named is not None else str(value)
        if field.message_type is None:
            if field.type == field.TYPE_STRING and not isinstance(value, str):
                raise BadRow(f"the text {field.name} of the message is not UTF-8")
            return value
        _require_known_fields(value)
        if field.message_type.full_name == TIMESTAMP:
            return _timestamp(value)
        if field.message_type.file.name == WRAPPERS:
            return value.value
        return self.of(value)


def _require_known_fields(message: Message) -> None:
    """Refuse a message with a field that no column could get, such as an extension. Raises
    BadRow."""
    unknown: Any = UnknownFieldSet(message)
    numbers = {one.field_number for one in unknown} if len(unknown) else set()
    numbers |= {field.number for field, _ in message.ListFields() if field.is_extension}
    if numbers:
        raise BadRow(
            f"the message has fields of {message.DESCRIPTOR.full_name} that the descriptors lack: "
            f"{', '.join(map(str, sorted(numbers)[:10]))}"
        )


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _timestamp(value: Any) -> str:
    if value.nanos % _NANOS_OF_A_MICROSECOND:
        raise BadRow("a timestamp of the message has more than 6 fractional digits")
    try:
        text: str = value.ToJsonString()
    except ValueError as error:
        raise BadRow(f"a timestamp of the message is out of range: {error}") from None
    return text
