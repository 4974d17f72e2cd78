"""Write the rows of a batch as messages, for a sink whose kind has ``attributes``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pyarrow as pa

from ha_engine.errors import ConfigError, SinkRefused
from ha_engine.formats.arrow_types import converts_to_attribute
from ha_engine.formats.message_writers import MessageWriter, open_writer
from ha_engine.formats.messages import VALUE, MessageOptions, type_of_attribute
from ha_engine.plugins import Messages, SinkPlugin, attributes_of


def encoder_of(
    where: str, kind: type[SinkPlugin], options: MessageOptions, base: Path
) -> MessageEncoder:
    """The encoder for a sink of this kind. A relative path begins at the directory ``base``. Raises
    ConfigError."""
    try:
        writer = open_writer(options.format, base)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return MessageEncoder(writer, options.columns, attributes_of(kind) or {})


class MessageEncoder:
    """Encodes the rows of one sink.

    ``writer`` is None if the value of a message is a column. ``columns`` maps columns of the query
    to attributes of a message, whose types are in ``attributes``. The other columns are in the
    value.
    """

    def __init__(
        self,
        writer: MessageWriter | None,
        columns: Mapping[str, str],
        attributes: Mapping[str, pa.DataType],
    ) -> None:
        self._writer, self._columns, self._types = writer, dict(columns), attributes

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that each message gets."""
        return frozenset(self._columns.values()) - {VALUE}

    def require_fit(self, schema: pa.Schema) -> None:
        """Refuse a schema that makes no messages. Raises SinkRefused, SinkUnavailable."""
        for attribute, times in Counter(self._columns.values()).items():
            if times > 1:
                raise SinkRefused(f"columns: two columns are the {attribute}; name one of them")
        if self._writer is not None and VALUE in self._columns.values():
            raise SinkRefused(f"columns: the attribute {VALUE!r} is for the format raw only")
        for column, attribute in self._columns.items():
            if column not in schema.names:
                raise SinkRefused(
                    f"columns.{column}: the query has no column {column!r}; it has "
                    f"{', '.join(schema.names)}"
                )
            wanted = type_of_attribute(self._types, attribute)
            if not converts_to_attribute(schema.field(column).type, wanted):
                raise SinkRefused(
                    f"columns.{column}: the column is {schema.field(column).type}, and {attribute} "
                    f"is {wanted}; cast it in the query"
                )
        rest = [name for name in schema.names if name not in self._columns]
        if self._writer is None and rest:
            raise SinkRefused(
                f"columns: a raw message has only attributes; map {', '.join(rest)}, or leave "
                "them out of the query"
            )
        if self._writer is not None and self._writer.rows_per_message > 1 and self._columns:
            raise SinkRefused("columns: a message has several rows; use a format with one")
        if self._writer is not None:
            self._writer.require_fit(pa.schema([schema.field(name) for name in rest]))

    def messages(self, rows: pa.Table) -> Messages:
        """The messages of ``rows``, in their order. Raises SinkRefused, SinkUnavailable."""
        given = {
            attribute: self._attribute(rows, column, attribute)
            for column, attribute in self._columns.items()
        }
        if self._writer is None:
            values = cast(list[bytes | None], given.pop(VALUE))
            return Messages(values, given)
        rest = [name for name in rows.column_names if name not in self._columns]
        return Messages(self._writer.values(rows.select(rest)), given)

    def _attribute(self, rows: pa.Table, column: str, attribute: str) -> list[object]:
        wanted = type_of_attribute(self._types, attribute)
        try:
            values: list[object] = rows.column(column).cast(wanted).to_pylist()
        except pa.ArrowException as error:
            raise SinkRefused(f"a value of column {column} is no {attribute}: {error}") from error
        return values
