"""The connection to the source's PostgreSQL: its statements, and the translation of its errors.

Nothing here knows what a stream is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

from ha_engine.connectors.postgres_cdc.initial import Initial, Key, Part, Snapshot
from ha_engine.connectors.postgres_cdc.offset import Published, lsn_of, lsn_text
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.values import TypeForm
from ha_engine.errors import EngineError, SourceRefused, SourceUnavailable

FETCH_ROWS, FETCH_ROWS_LARGE = 500, 20
FETCH_BYTES = 4 << 20
"""Rows are fetched FETCH_ROWS at a time, FETCH_ROWS_LARGE or one if more have more bytes."""
VERSION_MIN = 130000
SETTINGS = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "search_path": "",
    "row_security": "off",  # an error instead of a table with some rows missing
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "local",
}
"""The settings of each session, on which the text of values depends."""
_BUSY = "55006"
_PASSES = ("08", "40", "53", "57", "58", "25006", "55P03", _BUSY)
_PASSING_TEXTS = (
    "starting up",
    "shutting down",
    "terminating connection",
    "due to timeout",
    "not accepting",
    "not yet accepting",
    "recovery mode",
    "too many clients",
    "remaining connection slots",
    "too many connections",
)
_REFUSED_TEXTS = (
    "FATAL:",
    "certificate",
    "private key",
    "no password supplied",
    "does not support SSL",
)
_LIMIT, _FILE_MISSING, _NOT_READY, _NO_OBJECT = "53400", "58P01", "55000", "42704"
_BTREE_EQUAL, _BTREE_GREATER = 3, 5
"""The strategies of a B-tree's operators."""
_GREATER = "OPERATOR(pg_catalog.>)"
LOST = (
    "changes after the source's offset are lost; give the source another name, with which it "
    "begins anew (with initial: true it reads the whole table again), or accept the loss with "
    "skip_to"
)
_RIGHTS = (
    "the user needs the attribute REPLICATION (ALTER ROLE … REPLICATION), and SELECT on the table "
    "for the initial read"
)

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The values of a statement's placeholders."""


class SlotBusy(SourceUnavailable):
    """Another session uses the slot at this moment."""


@dataclass(frozen=True, slots=True)
class Log:
    """The state of the WAL: ``flushed`` is its durable end, ``now`` the server's clock."""

    flushed: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot. ``confirmed`` is the position up to which it was advanced, and
    ``is_lost`` is whether the server has removed WAL that the slot needs."""

    plugin: str | None
    database: str | None
    confirmed: int
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the table, the slot and the publication."""

    schema: str
    table: str
    slot: str
    publication: str

    @property
    def quoted_table(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"


@dataclass(frozen=True, slots=True)
class Present:
    """The objects of the server under the source's names at one moment. An oid or slot is None if
    it is missing. ``membership`` is None if the publication does not have the table."""

    publication: int | None
    table: int | None
    membership: int | None
    slot: Slot | None

    @property
    def published(self) -> Published | None:
        if self.publication is None or self.table is None or self.membership is None:
            return None
        return Published(self.publication, self.table, self.membership)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the primary key, with SQL for statements with placeholders: for its type with the
    collation, and for the operators of its order, such as ``OPERATOR(pg_catalog.>)``."""

    name: str
    type: str
    equal: str
    greater: str


@dataclass(frozen=True, slots=True)
class TableForm:
    """The table as it is now, and the part of it that the publication has.

    ``columns`` are the published ones, as (name, type oid). ``row_filter`` is SQL, or empty.
    """

    oid: int
    kind: str
    replica_identity: str
    columns: tuple[tuple[str, int], ...]
    key: tuple[KeyColumn, ...]
    row_filter: str
    published: frozenset[str]

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.key)

    @property
    def order(self) -> str:
        """The order of the primary key, as text."""
        return ", ".join(f"{quoted(one.name)} {one.type} {one.greater}" for one in self.key)


@dataclass(frozen=True, slots=True)
class PageRows:
    """Rows of a page as the texts of rows, and the snapshot to which they belong."""

    rows: tuple[str, ...]
    is_last: bool
    snapshot: Snapshot
    through: int
    now: datetime


def quoted(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _as_written(sql: str) -> str:
    """``sql`` for a statement with placeholders, in which a percent sign must be doubled."""
    return sql.replace("%", "%%")


class Server:
    """One session at the server. The constructor connects."""

    def __init__(self, options: PostgresCdcOptions, application: str) -> None:
        self._options = options
        self.where = f"{options.host}/{options.database}"
        with self._translated():
            self._connection = psycopg2.connect(**self._parameters(application))
            self._connection.autocommit = True
            settings = SETTINGS | {"lock_timeout": f"{round(options.timeout * 1000)}ms"}
            for name, value in settings.items():
                self._execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))

    def _parameters(self, application: str) -> dict[str, Any]:
        options = self._options
        given = {
            "host": options.host,
            "port": options.port,
            "dbname": options.database,
            "user": options.user,
            "password": options.password and options.password.get_secret_value(),
            "sslmode": options.ssl_mode,
            "sslrootcert": options.ca_file and str(options.ca_file),
            "sslcert": options.certificate_file and str(options.certificate_file),
            "sslkey": options.key_file and str(options.key_file),
            "connect_timeout": max(2, round(options.connect_timeout)),
            "application_name": application[:63],
            "client_encoding": "UTF8",
            "target_session_attrs": "primary" if "," in options.host else None,
            # A server that vanished without a word is noticed within about half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }
        return {name: value for name, value in given.items() if value is not None}

    def close(self) -> None:
        try:
            self._connection.close()
        except psycopg2.Error:
            pass  # the server closed it first

    # -- the server and its log --------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Such as 150018 for 15.18."""
        return int(self._connection.server_version)

    def require_fit(self) -> None:
        """Raise SourceRefused unless the server can decode its log, and SourceUnavailable while it
        is a standby."""
        if self.version < VERSION_MIN:
            raise SourceRefused(
                f"the server {self.where} has version {self.version // 10000}; the source needs "
                f"PostgreSQL {VERSION_MIN // 10000} or later"
            )
        [(standby, level)] = self.query(
            "SELECT pg_is_in_recovery(), current_setting('wal_level')", ()
        )
        if standby:
            raise SourceUnavailable(
                f"the server {self.where} is a standby; the source waits until it is promoted, or "
                "name the primary in host"
            )
        if level != "logical":
            raise SourceRefused(
                f"the server {self.where} has wal_level = {level}; set wal_level = logical in its "
                "postgresql.conf and restart it"
            )

    def system(self) -> tuple[str, int]:
        """The identifier of the server's data and its timeline."""
        [(system, segment)] = self.query(
            "SELECT (SELECT system_identifier::text FROM pg_control_system()),"
            " pg_walfile_name(pg_current_wal_lsn())",
            (),
        )
        return system, int(segment[:8], 16)

    def log(self) -> Log:
        [(flushed, now)] = self.query("SELECT pg_current_wal_flush_lsn(), clock_timestamp()", ())
        return Log(lsn_of(flushed), now)

    def snapshot(self) -> Snapshot:
        [(text,)] = self.query("SELECT pg_current_snapshot()::text", ())
        return Snapshot.parse(text)

    def unfinished(self) -> frozenset[int]:
        """Every transaction that may be in the log and that a new snapshot does not see.

        A transaction releases the lock of its id only after snapshots see it. The query takes no
        id, since the slot would have to pass its record.
        """
        found = self.query(
            "SELECT DISTINCT transactionid::text::bigint FROM pg_locks"
            " WHERE locktype = 'transactionid' AND granted",
            (),
        )
        return frozenset(xid for (xid,) in found)

    def flush(self) -> None:
        """Make the WAL so far durable, by a small transaction of its own."""
        self.query("SELECT pg_logical_emit_message(true, 'ha_engine', '')", ())

    def fork_of(self, timeline: int) -> int | None:
        """The position at which the server's history left ``timeline``, or None if it never had
        it. Only a replication connection can read the history."""
        _, present = self.system()
        with self._translated():
            connection = psycopg2.connect(
                connection_factory=LogicalReplicationConnection,
                **self._parameters("ha-engine history"),
            )
            try:
                cursor = connection.cursor()
                cursor.execute(f"TIMELINE_HISTORY {present}")
                [(_, content)] = cursor.fetchall()
            finally:
                connection.close()
        text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
        for line in text.splitlines():
            found = re.match(r"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", line)
            if found and int(found[1]) == timeline:
                return lsn_of(found[2])
        return None

    # -- the publication, the table and the slot ---------------------------------------------------

    def present(self, names: Names) -> Present:
        """Return what the server has now. The query waits for no lock of the table."""
        schemas = (
            " WHEN EXISTS (SELECT FROM pg_publication_namespace n"
            "  JOIN pg_class k ON k.relnamespace = n.pnnspid"
            "  WHERE n.pnpubid = p.oid AND k.oid = ANY (family)) THEN 0"
            if self.version >= 150000
            else ""
        )
        [(publication, table, membership, *slot)] = self.query(
            "SELECT p.oid, c.oid, coalesce((SELECT min(r.oid::bigint) FROM pg_publication_rel r"
            "   WHERE r.prpubid = p.oid AND r.prrelid = ANY (family)),"
            f"  CASE WHEN p.puballtables THEN 0{schemas} END),"
            " s.slot_name, s.plugin, s.database, s.confirmed_flush_lsn, s.wal_status = 'lost'"
            " FROM (SELECT) present"
            " LEFT JOIN pg_publication p ON p.pubname = %s"
            " LEFT JOIN pg_class c ON c.relname = %s AND c.relkind IN ('r', 'p') AND"
            "  c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)"
            " LEFT JOIN pg_replication_slots s ON s.slot_name = %s,"
            " LATERAL (SELECT ARRAY(SELECT relid::oid FROM pg_partition_ancestors(c.oid))"
            "  || c.oid) AS f(family)",
            (names.publication, names.table, names.schema, names.slot),
        )
        name, plugin, database, confirmed, is_lost = slot
        at = lsn_of(confirmed) if confirmed else 0
        found = None if name is None else Slot(plugin, database, at, bool(is_lost))
        return Present(publication, table, membership, found)

    def table_name(self, oid: int) -> tuple[str, str] | None:
        """The schema and the name of the table ``oid`` now, or None if it was dropped."""
        found = self.query(
            "SELECT n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
            (oid,),
        )
        return found[0] if found else None

    def create_publication(self, publication: str, schema: str, table: str, kinds: str) -> None:
        names = f"{quoted(publication)} FOR TABLE {quoted(schema)}.{quoted(table)}"
        self.query(
            f"CREATE PUBLICATION {_as_written(names)}"
            " WITH (publish = %s, publish_via_partition_root = true)",
            (kinds,),
        )

    def table(self, publication: str, schema: str, table: str) -> TableForm | None:
        """The published form of the table, or None if it does not exist. ``published`` is empty if
        the publication lacks it."""
        found = self.query(
            "SELECT c.oid, c.relkind::text, c.relreplident::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
            (schema, table),
        )
        if not found:
            return None
        [(oid, kind, identity)] = found
        names, row_filter, published = self.published(publication, schema, table)
        columns = self.query(
            "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            (oid,),
        )
        kept = tuple(one for one in columns if names is None or one[0] in names)
        return TableForm(oid, kind, identity, kept, self._key(oid), row_filter, published)

    def published(
        self, publication: str, schema: str, table: str
    ) -> tuple[list[str] | None, str, frozenset[str]]:
        """The columns of the table that are published, or None for all, its row filter, and the
        operations that are published under its name."""
        lists = "t.attnames::text[], t.rowfilter" if self.version >= 150000 else "NULL, NULL"
        found = self.query(
            f"SELECT {lists}, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate"
            " FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname"
            " WHERE t.pubname = %s AND t.schemaname = %s AND t.tablename = %s",
            (publication, schema, table),
        )
        if not found:
            return None, "", frozenset()
        [(names, row_filter, *flags)] = found
        kinds = zip(("insert", "update", "delete", "truncate"), flags, strict=True)
        return names, row_filter or "", frozenset(name for name, flag in kinds if flag)

    def _key(self, oid: int) -> tuple[KeyColumn, ...]:
        # The operators of a type such as citext are not in the search path.
        operators = ", ".join(
            "(SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) FROM pg_amop m"
            " JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace"
            " WHERE m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype"
            f" AND m.amoprighttype = c.opcintype AND m.amopstrategy = {strategy})"
            for strategy in (_BTREE_EQUAL, _BTREE_GREATER)
        )
        found = self.query(
            "SELECT a.attname, format_type(a.atttypid, -1) ||"
            " CASE WHEN l.oid IS NULL THEN '' ELSE"
            f"  format(' COLLATE %%I.%%I', n.nspname, l.collname) END, {operators}"
            " FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[])"
            "  WITH ORDINALITY k(attnum, class, place)"
            " JOIN pg_opclass c ON c.oid = k.class"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
            " LEFT JOIN pg_collation l ON l.oid = a.attcollation"
            " LEFT JOIN pg_namespace n ON n.oid = l.collnamespace"
            " WHERE i.indrelid = %s AND i.indisprimary AND k.place <= i.indnkeyatts"
            " ORDER BY k.place",
            (oid,),
        )
        return tuple(KeyColumn(name, *map(_as_written, sql)) for name, *sql in found)

    def may(self, schema: str, table: str) -> tuple[bool, bool]:
        """Whether the user may use replication slots, and read the table."""
        [found] = self.query(
            "SELECT (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)"
            " OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication'"
            "  AND pg_has_role(oid, 'member')),"
            " has_table_privilege(%s, 'select')",
            (f"{quoted(schema)}.{quoted(table)}",),
        )
        return found[0], found[1]

    def type_forms(self, oids: Sequence[int]) -> dict[int, TypeForm]:
        """The forms of the types ``oids`` and of the types within them."""
        found = self.query(
            "WITH RECURSIVE known(oid) AS ("
            " SELECT unnest(%s::oid[])"
            " UNION SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END"
            "  FROM known k JOIN pg_type t ON t.oid = k.oid"
            "  WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0))"
            " SELECT t.oid, t.typtype::text, t.typbasetype,"
            "  CASE WHEN t.typcategory = 'A' AND t.oid NOT IN (22, 30) THEN t.typelem ELSE 0 END,"
            "  t.typdelim::text FROM known k JOIN pg_type t ON t.oid = k.oid",
            (list(oids),),
        )
        rows = {oid: (kind, base, element, mark) for oid, kind, base, element, mark in found}
        forms = dict[int, TypeForm]()
        for oid in rows:
            bottom = oid
            while bottom in rows and rows[bottom][0] == "d":
                bottom = rows[bottom][1]
            element = rows[bottom][2] if bottom in rows else 0
            mark = rows[element][3] if element in rows else ","
            forms[oid] = TypeForm(bottom, element, mark)
        return forms

    # -- the slot ----------------------------------------------------------------------------------

    def create_slot(self, name: str) -> None:
        """Create the slot, which waits for the end of each transaction that runs now."""
        limit = round(self._options.timeout * 1000)
        self.query("SELECT pg_catalog.set_config('statement_timeout', %s, false)", (f"{limit}",))
        try:
            self.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        except SourceUnavailable as error:
            raise SourceUnavailable(
                f"{error}; the slot {name!r} can only be created once the transactions of that "
                "moment have ended, so look for an old one in pg_stat_activity"
            ) from error
        self.query("SELECT pg_catalog.set_config('statement_timeout', '0', false)", ())

    def advance(self, name: str, lsn: int) -> None:
        """Let the server forget the log before ``lsn``."""
        self.query("SELECT pg_replication_slot_advance(%s, %s)", (name, lsn_text(lsn)))

    def peek(self, name: str, publication: str, upto: int, messages: int) -> Cursor:
        """Decode the log of the slot up to ``upto``, or to the end of the transaction with which
        there are more than ``messages`` messages; take nothing.

        The server keeps the messages for the cursor, and no transaction stays open meanwhile.
        """
        options = "'proto_version', '1', 'publication_names', %s"
        return Cursor(
            self,
            "WITH HOLD",
            "SELECT data, octet_length(data) AS size"
            f" FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, {options})",
            (name, lsn_text(upto), messages, quoted(publication)),
        )

    # -- pages of the table ------------------------------------------------------------------------

    def page(
        self,
        name: str,
        table: TableForm,
        after: Key | None,
        may_read: Callable[[Snapshot], bool],
        rows_max: int,
    ) -> PageRows | None:
        """Read the next rows of the table ``name``, in the order of its key, from one snapshot.

        Returns None if ``may_read`` refuses the snapshot.
        """
        self.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())
        try:
            # The lock comes before the snapshot. Otherwise a TRUNCATE, or an ALTER TABLE that
            # rewrites the table, could end between them, and the table would look empty.
            self.query(f"LOCK TABLE {_as_written(name)} IN ACCESS SHARE MODE", ())
            [(text, end, block, now)] = self.query(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn(),"
                " current_setting('wal_block_size')::int, clock_timestamp()",
                (),
            )
            snapshot = Snapshot.parse(text)
            if not may_read(snapshot):
                return None
            rows, is_last = self._rows_after(name, table, after, rows_max)
            return PageRows(rows, is_last, snapshot, _record_end(lsn_of(end), block), now)
        finally:
            self.query("ROLLBACK", ())

    def _rows_after(
        self, name: str, table: TableForm, after: Key | None, rows_max: int
    ) -> tuple[tuple[str, ...], bool]:
        columns = _as_written(", ".join(f"t.{quoted(column)}" for column, _ in table.columns))
        keys = [_as_written(f"t.{quoted(column.name)}") for column in table.key]
        where = [f"({_as_written(table.row_filter)})"] if table.row_filter else []
        if after is not None:
            where.append(_beyond(table.key, keys, "after", after))
        only = "ONLY " if table.kind == "r" else ""
        cursor = Cursor(
            self,
            "",
            "SELECT r, octet_length(r) AS size FROM ("
            f"SELECT ROW({columns})::text AS r FROM {only}{_as_written(name)} t"
            f"{' WHERE ' if where else ''}{' AND '.join(where)}"
            f" ORDER BY {', '.join(keys)} LIMIT {rows_max}) page",
            _named("after", after or ()),
        )
        rows, size = list[str](), 0
        while chunk := cursor.fetch():
            rows += [row for (row,) in chunk]
            size += sum(len(row) for (row,) in chunk)
            if size >= FETCH_BYTES:
                break
        else:
            return tuple(rows), len(rows) < rows_max
        return tuple(rows), False

    def parts(self, table: TableForm, keys: Sequence[Key], initial: Initial) -> list[Part]:
        """The parts of the table to which ``keys`` belong, compared as PostgreSQL compares them."""
        places = range(len(table.key))
        given = [f"k.c{place}::{column.type}" for place, column in enumerate(table.key)]
        page, to = initial.page, initial.to
        after = page.after if page else None
        is_after = "false" if page is None else _beyond(table.key, given, "after", after)
        is_later = "false" if initial.is_whole else _beyond(table.key, given, "to", to)
        found = self.query(
            f"SELECT {is_after}, {is_later}"
            f" FROM unnest({', '.join(f'%(key{place})s::text[]' for place in places)})"
            f" WITH ORDINALITY k({', '.join(f'c{place}' for place in places)}, n) ORDER BY n",
            _named("after", after or ())
            | _named("to", to or ())
            | _named("key", [list(column) for column in zip(*keys, strict=True)]),
        )
        return [
            Part.LATER if later else Part.LAST if after else Part.EARLIER for after, later in found
        ]

    # -- statements --------------------------------------------------------------------------------

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._execute(sql, values)

    def _execute(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise translated(error, self.where) from error


class Cursor:
    """A cursor at the server over ``sql``, whose last column must be ``size``, in bytes.

    ``fetch`` brings as many rows as have at most FETCH_BYTES, or a single one, since each row also
    says how large the rows after it are.
    """

    def __init__(self, server: Server, hold: str, sql: str, values: Values) -> None:
        self._server, self._count = server, 1
        sizes = ", ".join(
            f"sum(size) OVER (ROWS BETWEEN 1 FOLLOWING AND {rows} FOLLOWING)"
            for rows in (FETCH_ROWS, FETCH_ROWS_LARGE)
        )
        server.query(
            f"DECLARE ha_engine NO SCROLL CURSOR {hold} FOR SELECT s.*, {sizes} FROM ({sql}) s",
            values,
        )

    def fetch(self) -> list[tuple[Any, ...]]:
        """The next rows without their sizes; none at the end."""
        rows = self._server.query(f"FETCH {self._count} FROM ha_engine", ())
        if rows:
            *_, many, few = rows[-1]
            if (many or 0) <= FETCH_BYTES:
                self._count = FETCH_ROWS
            else:
                self._count = FETCH_ROWS_LARGE if few <= FETCH_BYTES else 1
        return [row[:-3] for row in rows]

    def close(self) -> None:
        self._server.query("CLOSE ha_engine", ())


def _named(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}{place}": value for place, value in enumerate(values)}


def _beyond(key: Sequence[KeyColumn], given: Sequence[str], name: str, bound: Key | None) -> str:
    """SQL for whether the key ``given`` comes after ``bound``, whose values are the parameters
    ``_named(name, bound)``."""
    if bound is None:
        return "true"
    bounds = [f"%({name}{place})s::{column.type}" for place, column in enumerate(key)]
    if all(column.greater == _GREATER for column in key):
        # PostgreSQL can find the first row in the index.
        return f"({', '.join(given)}) {_GREATER} ({', '.join(bounds)})"
    beyond = "false"
    for column, one, than in reversed(list(zip(key, given, bounds, strict=True))):
        beyond = f"({one} {column.greater} {than} OR {one} {column.equal} {than} AND {beyond})"
    return beyond


def _record_end(insert: int, block: int) -> int:
    """The end of the last record before the insert position, which in an otherwise empty block is
    behind the block's header (of at most 40 bytes). The flushed WAL need not reach that far."""
    return insert - insert % block if insert % block <= 40 else insert


def translated(error: Exception, where: str) -> EngineError:
    """The engine's error in place of psycopg2's ``error``."""
    code = getattr(error, "pgcode", None) or ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    text = f"the server {where} answers: {reason}"
    if code == _BUSY:
        return SlotBusy(text)
    if code == _LIMIT:
        return SourceRefused(f"{text}; raise this limit in the server's configuration")
    if code == _FILE_MISSING or (code == _NOT_READY and "can no longer" in reason):
        return SourceRefused(f"{text}; {LOST}")
    if code == _NO_OBJECT:
        return SourceRefused(
            f"{text}; create it again; the log from before that cannot be decoded with it, so if "
            f"this remains, {LOST}"
        )
    if code.startswith(_PASSES):
        return SourceUnavailable(text)
    if code == "42501":
        return SourceRefused(f"{text}; {_RIGHTS}")
    if code:
        return SourceRefused(text)
    if any(known in str(error) for known in _PASSING_TEXTS):
        return SourceUnavailable(text)
    if any(known in str(error) for known in _REFUSED_TEXTS):
        # libpq gives no code for a refused connection.
        return SourceRefused(
            f"the server {where} refuses the connection: {reason}; check host, database, user, "
            "password, the tls options, and the server's pg_hba.conf"
        )
    return SourceUnavailable(f"the server {where} cannot be reached: {reason}")
