"""Decode a request body in Arrow's IPC stream format into one record batch, or say in a sentence
why the body is refused.

A value of an Arrow body follows the rules for JSON values in the module ``decode``. The class
``ColumnReader`` makes the checks that both formats share. A column of the body belongs to the
stream's column of the same name. A nullable column that the body lacks becomes null. A conversion
must lose no information. An integer may have another width than the stream's column, or be sent for
a double. A timestamp may have another unit than the stream's column.

The engine does not trust a body, so it validates each batch in full before any other use. To limit
memory, the engine refuses compressed buffers (gzip the request instead), dictionaries, views and
run ends. The engine also refuses lists with too many elements of a type that may take no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ha_engine.errors import InvalidEvents
from ha_engine.formats.arrow_types import converts_to
from ha_engine.receive.columns import (
    ColumnReader,
    SchemaMismatch,
    expected,
    leaves,
    require_known_years,
)
from ha_engine.receive.diagnose import first_bad, of_not_null, shown, unknown

BARE_ELEMENTS_MAX = 1_000_000
"""The most nulls or structs in the lists of one column of a body. Such a list element may take no
byte in the body, but it takes memory."""


class ArrowReader:
    """Reads Arrow bodies for one stream. ``readers`` has one ``ColumnReader`` for each column of
    ``schema``."""

    def __init__(self, schema: pa.Schema, readers: Sequence[ColumnReader]) -> None:
        self._schema, self._readers = schema, readers

    def batches(self, body: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the batches of ``body`` unconverted, each validated and checked against the
        stream's schema.

        Raises InvalidEvents.
        """
        try:
            yield from self._batches(body)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidEvents(f"the body is not in Arrow's stream format: {error}") from None

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert ``batch`` to the stream's schema. Raises InvalidEvents, which names the first bad
        row."""
        try:
            return self._shaped(batch)
        except SchemaMismatch as mismatch:
            row = first_bad(batch.num_rows, lambda *part: self._accepts(_part(batch, *part)))
            if row is None:
                raise InvalidEvents(str(mismatch)) from None
            raise InvalidEvents(self._reason(_part(batch, row, row + 1)), row) from None

    # -- the stream --------------------------------------------------------------------------------

    def _batches(self, body: bytes) -> Iterator[pa.RecordBatch]:
        source = pa.BufferReader(body)
        schema = pa.ipc.read_schema(source)
        self._check_schema(schema)
        bare = dict.fromkeys(schema.names, 0)
        while (message := _next_message(source)) is not None:
            if _is_compressed(message):
                raise InvalidEvents(
                    "the batches of the body are compressed, so their size is not known; send them "
                    "uncompressed, or compress the whole body with gzip"
                )
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            for name, column in zip(schema.names, batch.columns, strict=True):
                bare[name] += _bare_elements(column)
            if max(bare.values(), default=0) > BARE_ELEMENTS_MAX:
                raise InvalidEvents(f"a list has more than {BARE_ELEMENTS_MAX} elements")
            yield batch
        if source.tell() != len(body):
            raise InvalidEvents("the body has bytes after the end of its Arrow stream")

    def _check_schema(self, schema: pa.Schema) -> None:
        """Raise InvalidEvents unless the body's ``schema`` can be converted to the stream's
        schema."""
        if len(set(schema.names)) < len(schema.names):
            raise InvalidEvents(f"two columns have the same name: {', '.join(schema.names)[:200]}")
        for name in schema.names:
            if name not in self._schema.names:
                raise InvalidEvents(unknown(name, self._schema.names))
        for field in self._schema:
            if field.name not in schema.names:
                if not field.nullable:
                    raise InvalidEvents(of_not_null(field.name, "is missing"))
            elif not converts_to(schema.field(field.name).type, field.type):
                raise InvalidEvents(
                    f"column {field.name!r} is {schema.field(field.name).type}, and the stream "
                    f"declares {field.type}; convert the column before you send it"
                )

    # -- rows --------------------------------------------------------------------------------------

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            self._column(batch, reader, field)
            for reader, field in zip(self._readers, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, reader: ColumnReader, field: pa.Field) -> pa.Array:
        """Convert the column of ``batch`` for ``field`` to the type of ``field``. Raises
        SchemaMismatch."""
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        try:
            array = _cast(batch.column(field.name), field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(str(error)) from None
        if array.null_count and not field.nullable:
            raise SchemaMismatch(of_not_null(field.name, "is null"))
        reader.check(pa.chunked_array([array]), None)
        for leaf in leaves(array):
            require_known_years(leaf)
        return array

    def _accepts(self, batch: pa.RecordBatch) -> bool:
        try:
            self._shaped(batch)
        except SchemaMismatch:
            return False
        return True

    def _reason(self, row: pa.RecordBatch) -> str:
        """Say why ``row``, a batch of one row, is refused."""
        for reader, field in zip(self._readers, self._schema, strict=True):
            try:
                self._column(row, reader, field)
            except SchemaMismatch as mismatch:
                value = row.column(field.name)[0]
                if not value.is_valid:
                    return str(mismatch)
                return f"field {field.name!r} is {_text(value)}, expected {expected(field.type)}"
        return "the event does not fit the stream's schema"


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast ``array`` to the type ``target`` without loss of information. Raises ArrowInvalid."""
    match target:
        case _ if array.type == target:
            return array
        case pa.StructType() if pa.types.is_struct(array.type):
            children = [_child(array, field) for field in target]
            return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
        case pa.ListType() if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            values = _cast(array.values, target.value_type)
            offsets = array.offsets.cast(pa.int32())
            return pa.ListArray.from_arrays(offsets, values, type=target, mask=array.is_null())
        case _:
            return array.cast(target)


def _child(array: pa.StructArray, field: pa.Field) -> pa.Array:
    index = array.type.get_field_index(field.name)
    return pa.nulls(len(array), field.type) if index < 0 else _cast(array.field(index), field.type)


def _bare_elements(array: pa.Array) -> int:
    """The number of elements in the largest list array of nulls or structs within ``array``."""
    match array:
        case pa.StructArray():
            fields = range(array.type.num_fields)
            return max((_bare_elements(array.field(index)) for index in fields), default=0)
        case pa.ListArray() | pa.LargeListArray():
            values = array.values
            is_bare = isinstance(values, pa.NullArray | pa.StructArray)
            return max(len(values) if is_bare else 0, _bare_elements(values))
        case _:
            return 0


def _part(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    """Copy the rows from ``low`` to before ``high``. The rows are copied, because pyarrow cannot
    convert a slice of a list column with nulls."""
    return batch.take(pa.array(range(low, high), pa.int64()))


def _text(value: pa.Scalar) -> str:
    try:
        return shown(value.as_py())
    except (ValueError, OverflowError, LookupError):  # LookupError: no such time zone
        return f"a {value.type} outside the calendar"


# -- properties of a message that pyarrow does not expose ------------------------------------------


def _next_message(source: pa.BufferReader) -> pa.Message | None:
    try:
        return pa.ipc.read_message(source)
    except EOFError:
        return None


def _is_compressed(message: pa.Message) -> bool:
    """Whether the RecordBatch in ``message`` has field 3, compression (Message.fbs of Arrow's
    format).

    pyarrow has verified the flatbuffer of ``message``, but does not expose its compression codec.
    """
    data = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", data)
    header = _slot(data, root, 2)
    (batch,) = struct.unpack_from("<I", data, header)
    return _slot(data, header + batch, 3) != 0


def _slot(data: bytes, table: int, number: int) -> int:
    """The offset of field ``number`` of the flatbuffer table at offset ``table``; 0 if the table
    lacks the field."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", data, table - back + at)[0] if at < size else 0
    return table + int(offset) if offset else 0
