"""Write rows of the table as JSON objects of the stream; refuse a table that does not fit it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from ha_engine.connectors.postgres_cdc.offset import lsn_text
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.pgoutput import Column, Relation, Unchanged, Value, Values
from ha_engine.connectors.postgres_cdc.values import TypeForm, Writer, can_hold, writer_of
from ha_engine.errors import SourceRefused

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class BadRow(Exception):
    """A row that cannot be an event. The text says why."""


class UnchangedValue(Exception):
    """An update has a TOAST value that the log does not have."""

    def __init__(self, column: str) -> None:
        self.column = column
        super().__init__(
            f"the update did not change the large value of column {column!r}, so the log does not "
            "have it"
        )


def require_fit(options: PostgresCdcOptions, schema: pa.Schema) -> None:
    """Raise SourceRefused unless ``schema`` has the columns that the options name, and can hold a
    truncation if the source returns them."""
    for key, name, kinds, example in _metadata(options):
        if name is None:
            continue
        if name not in schema.names:
            raise SourceRefused(
                f"the stream has no column {name!r}; add '{name}: {example}' to its schema, or "
                f"change {key} of the source"
            )
        if not any(is_kind(schema.field(name).type) for is_kind in kinds):
            raise SourceRefused(
                f"column {name!r} of the stream is {schema.field(name).type}; {key} needs the type "
                f"{example}"
            )
        if key in ("before_column", "unchanged_column") and not schema.field(name).nullable:
            raise SourceRefused(
                f"column {name!r} of the stream is not null, but most rows have no {key}; remove "
                "'not null'"
            )
    strict = _not_null(options, schema)
    if "truncate" in options.operations and strict:
        raise SourceRefused(
            f"column {strict[0]!r} of the stream is not null, but a truncation has no value for "
            "it; remove 'not null', or leave truncate out of the source's operations"
        )


def metadata_names(options: PostgresCdcOptions) -> set[str]:
    """The stream's columns that the source fills itself."""
    return {name for _, name, _, _ in _metadata(options) if name is not None}


def _metadata(
    options: PostgresCdcOptions,
) -> Sequence[tuple[str, str | None, Sequence[Callable[[pa.DataType], bool]], str]]:
    text, struct = pa.types.is_string, pa.types.is_struct
    return (
        ("operation_column", options.operation_column, (text,), "string"),
        ("lsn_column", options.lsn_column, (text, pa.types.is_int64), "bigint"),
        ("commit_time_column", options.commit_time_column, (pa.types.is_timestamp,), "timestamp"),
        ("before_column", options.before_column, (text, struct), "string"),
        ("unchanged_column", options.unchanged_column, (_is_list_of_texts,), "array<string>"),
    )


def _is_list_of_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_string(kind.value_type))


def _not_null(options: PostgresCdcOptions, schema: pa.Schema) -> list[str]:
    ours = metadata_names(options)
    return [one.name for one in schema if not one.nullable and one.name not in ours]


class RowForm:
    """Writes rows of one form of the table. ``forms`` has the types of its columns.

    ``present`` returns the names of the columns that the publication has now. The log may be from
    before a column was added, where its null is the truth. But a column that was dropped, or that
    the log does not have, would be null without anybody's decision.

    The constructor raises SourceRefused if the table's columns do not fit the stream.
    """

    def __init__(
        self,
        options: PostgresCdcOptions,
        schema: pa.Schema,
        relation: Relation,
        forms: Mapping[int, TypeForm],
        present: Callable[[], Collection[str]],
    ) -> None:
        self._options, self._schema, self._relation = options, schema, relation
        self._where = f"{relation.schema}.{relation.name}"
        self._require_known_columns()
        self._require_columns_of_stream(present)
        self._require_types(forms)
        self._require_what_deletes_lack()
        self._parts = [self._part(column, forms) for column in relation.columns]
        self._before = self._before_parts(forms)
        lsn = options.lsn_column
        self._lsn_is_text = lsn is not None and pa.types.is_string(schema.field(lsn).type)

    # -- the table against the stream --------------------------------------------------------------

    def _require_known_columns(self) -> None:
        options, where = self._options, self._where
        ours = metadata_names(options)
        for name in self._names:
            if name in ours:
                raise SourceRefused(
                    f"the table {where} has a column {name!r}, which the source fills itself; "
                    "choose another name in the source's options"
                )
            if name not in self._schema.names and name not in options.ignore_columns:
                raise SourceRefused(
                    f"the stream has no column {name!r}, which the table {where} has; add it to "
                    "the stream's schema, or name it in ignore_columns of the source"
                )

    def _require_columns_of_stream(self, present: Callable[[], Collection[str]]) -> None:
        options = self._options
        known = metadata_names(options) | options.absent_columns
        for field in self._schema:
            name = field.name
            if not field.nullable and name not in metadata_names(options):
                if name not in self._names or name in options.ignore_columns:
                    raise SourceRefused(
                        f"the table {self._where} has no column {name!r}, at least where the "
                        "source reads its log, but the stream declares it not null; remove 'not "
                        "null'"
                    )
            elif name not in self._names and name not in known and name not in present():
                raise SourceRefused(
                    f"the published table {self._where} has no column {name!r}, which the stream "
                    "has; the log has no generated columns; remove the column from the stream's "
                    "schema, or name it in absent_columns of the source, with which it is null"
                )

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self._relation.columns]

    def _require_types(self, forms: Mapping[int, TypeForm]) -> None:
        for column in self._relation.columns:
            if column.name in self._options.ignore_columns:
                continue
            target = self._schema.field(column.name).type
            if not can_hold(target, column.type_oid, forms):
                raise SourceRefused(
                    f"column {column.name!r} of the stream is {target}, which cannot hold the type "
                    f"that the column of the table {self._where} has; change the type in the "
                    "stream's schema (string holds every type), or name the column in "
                    "ignore_columns"
                )

    def _require_what_deletes_lack(self) -> None:
        relation = self._relation
        if "delete" not in self._options.operations or relation.replica_identity in "fn":
            return
        keys = {column.name for column in relation.columns if column.is_key}
        for name in _not_null(self._options, self._schema):
            if name not in keys:
                raise SourceRefused(
                    f"column {name!r} of the stream is not null, but the log of a delete has only "
                    f"the key of {self._where}; remove 'not null', or run "
                    f'ALTER TABLE "{relation.schema}"."{relation.name}" REPLICA IDENTITY FULL'
                )

    def _part(self, column: Column, forms: Mapping[int, TypeForm]) -> tuple[str, Writer] | None:
        if column.name in self._options.ignore_columns:
            return None
        target = self._schema.field(column.name).type
        return f"{_quoted(column.name)}:", writer_of(column.type_oid, forms, target)

    def _before_parts(self, forms: Mapping[int, TypeForm]) -> list[tuple[str, Writer] | None]:
        """The writers of the old row, in which a text has the form of a column of the stream."""
        if (name := self._options.before_column) is None:
            return []
        kind = self._schema.field(name).type
        if not pa.types.is_struct(kind):
            return self._parts
        fields = {field.name: field.type for field in kind}
        return [
            (f"{_quoted(one.name)}:", writer_of(one.type_oid, forms, fields[one.name]))
            if one.name in fields
            else None
            for one in self._relation.columns
        ]

    # -- one row -----------------------------------------------------------------------------------

    def row(
        self, operation: str, values: Values, old: Values | None, lsn: int, at: datetime
    ) -> bytes:
        """Write one row. Raises BadRow, and UnchangedValue unless a column names such values."""
        options, parts = self._options, list[str]()
        if options.operation_column is not None:
            parts.append(f"{_quoted(options.operation_column)}:{_quoted(operation)}")
        if options.lsn_column is not None:
            shown = _quoted(lsn_text(lsn)) if self._lsn_is_text else str(lsn)
            parts.append(f"{_quoted(options.lsn_column)}:{shown}")
        if options.commit_time_column is not None:
            time = at.astimezone(UTC).replace(tzinfo=None).isoformat()
            parts.append(f'{_quoted(options.commit_time_column)}:"{time}Z"')
        if options.before_column is not None and old is not None:
            parts.append(f"{_quoted(options.before_column)}:{self._old_row(old)}")
        unchanged = self._write(self._parts, values, parts)
        if unchanged:
            if options.unchanged_column is None:
                raise UnchangedValue(unchanged[0])
            parts.append(f"{_quoted(options.unchanged_column)}:{_quoted(unchanged)}")
        return f"{{{','.join(parts)}}}".encode()

    def _old_row(self, old: Values) -> str:
        parts = list[str]()
        self._write(self._before, old, parts)
        document = f"{{{','.join(parts)}}}"
        kind = self._schema.field(self._options.before_column).type
        return document if pa.types.is_struct(kind) else _quoted(document)

    def _write(
        self, writers: Sequence[tuple[str, Writer] | None], values: Values, parts: list[str]
    ) -> list[str]:
        """Append the columns that are not null, and return the names of the unchanged ones."""
        unchanged = list[str]()
        # A truncation has no values.
        for at, (part, value) in enumerate(zip(writers, values, strict=False)):
            if part is None or value is None:
                continue
            if value is Unchanged.TOAST:
                unchanged.append(self._relation.columns[at].name)
                continue
            parts.append(part[0] + self._written(part[1], value, at))
        return unchanged

    def _written(self, write: Writer, value: Value, at: int) -> str:
        assert isinstance(value, bytes), "a value is text"
        name = self._relation.columns[at].name
        try:
            return write(value.decode())
        except UnicodeDecodeError:
            raise BadRow(f"column {name!r} is not valid in UTF-8") from None
        except (ValueError, LookupError) as error:
            raise BadRow(f"column {name!r} has another form than its type: {error}") from None
