"""The source ``postgres_cdc`` at a real PostgreSQL."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extras import LogicalReplicationConnection

from ha_engine.connectors.postgres_cdc import reading
from ha_engine.connectors.postgres_cdc.offset import lsn_of
from ha_engine.connectors.postgres_cdc.server import Server
from ha_engine.connectors.postgres_cdc.source import PostgresCdcSource
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import SourceBatch, SourcePlace, SourcePlugin
from ha_engine.receive.decode import Decoder
from ha_engine.receive.pull.validate import validate
from ha_engine.testing import SourceContract
from tests.connectors.postgres_cdc_broker import Broker, new_broker, tls_front
from tests.programs import needs
from tests.sync.authority import Authority
from tests.waiting import wait_until

pytestmark = pytest.mark.rotates("file")

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("op", pa.string())])
SECONDS = 20.0
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with new_broker() as broker:
        yield broker


@dataclass
class Table:
    """A table ``t`` in a database of its own, and a journal of what a source read from it."""

    broker: Broker
    database: str
    options: dict[str, Any] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.broker.run(sql, self.database)

    def source(self, **options: Any) -> PostgresCdcSource:
        given = {
            "host": self.broker.host,
            "port": self.broker.port,
            "database": self.database,
            "user": "postgres",
            "table": "t",
            "slot": f"slot_{self.database}",
            "create": True,
            "timeout": "300s",  # for a slow host, on which sessions of the last test still end
        }
        made = PostgresCdcSource.Options.model_validate(given | self.options | options)
        return PostgresCdcSource(made, SourcePlace("group", "stream", "source", self.schema))

    def opened(self, offset: str | None = None, **options: Any) -> PostgresCdcSource:
        source = self.source(**options)
        source.open(offset)
        return source

    @property
    def slot(self) -> str:
        return f"slot_{self.database}"

    def confirmed_text(self) -> str:
        [(lsn,)] = self.run(
            f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )
        return str(lsn)

    def confirmed(self) -> int:
        return lsn_of(self.confirmed_text())


@pytest.fixture
def table(broker: Broker) -> Iterator[Table]:
    with broker.database(f"cdc{next(_numbers)}") as name:
        table = Table(broker, name)
        table.run("CREATE TABLE t (id int PRIMARY KEY, text text)")
        yield table


def rows_of(batch: SourceBatch | None) -> list[dict[str, Any]]:
    assert batch is not None, "rows are missing"
    assert not batch.dead_letters
    for row in range(len(batch.rows)):
        assert batch.place(row)
    return [json.loads(row) for row in batch.rows]


def read(source: PostgresCdcSource, rows: int, rows_max: int = 1000) -> list[dict[str, Any]]:
    """Read exactly that many rows."""
    found = list[dict[str, Any]]()
    while len(found) < rows:
        found += rows_of(source.read(rows_max, SECONDS))
    assert len(found) == rows
    return found


def refusal(work: Callable[[], object], kind: type[Exception] = SourceRefused) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


class TestContract(SourceContract):
    """The contract, for a table that only grows, whose rows are read from the table and the log."""

    kind = PostgresCdcSource
    table: Table

    @pytest.fixture(autouse=True)
    def _table(self, table: Table) -> None:
        table.options = {"initial": True, "operations": ["insert"], "operation_column": None}
        self.table = table

    def options(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.table.source()._options.model_dump().items()
            if name in ("host", "port", "database", "user", "table", "slot", "create")
        } | self.table.options

    def put(self, rows: list[dict[str, Any]]) -> None:
        connection = self.table.broker.connect(self.table.database)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO t SELECT (r->>'id')::int, r->>'text' FROM json_array_elements(%s) r",
                (json.dumps(rows),),
            )
        connection.close()


# -- changes ---------------------------------------------------------------------------------------


def test_each_kind_of_change_is_a_row(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    table.run("UPDATE t SET text = 'c' WHERE id = 1")
    table.run("DELETE FROM t WHERE id = 2")
    table.run("TRUNCATE t")
    assert read(source, 5) == [
        {"op": "insert", "id": 1, "text": "a"},
        {"op": "insert", "id": 2, "text": "b"},
        {"op": "update", "id": 1, "text": "c"},
        {"op": "delete", "id": 2},
        {"op": "truncate"},
    ]
    source.close()


def test_a_changed_key_is_a_delete_and_an_insert_even_in_two_reads(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    read(source, 1)
    table.run("UPDATE t SET id = 2")
    first = source.read(1, SECONDS)
    assert rows_of(first) == [{"op": "delete", "id": 1}]
    source.close()
    assert first is not None
    source = table.opened(first.offset)
    assert read(source, 1) == [{"op": "insert", "id": 2, "text": "a"}]
    source.close()


def test_what_was_rolled_back_is_not_read(table: Table) -> None:
    source = table.opened()
    connection = table.broker.connect(table.database)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO t VALUES (1, 'no'); ROLLBACK")
        cursor.execute("BEGIN; INSERT INTO t VALUES (2, 'yes'); SAVEPOINT s")
        cursor.execute("INSERT INTO t VALUES (3, 'no'); ROLLBACK TO s")
        cursor.execute("SAVEPOINT s2; INSERT INTO t VALUES (4, 'yes'); RELEASE s2; COMMIT")
        cursor.execute("BEGIN; INSERT INTO t VALUES (5, 'no'); PREPARE TRANSACTION 'no'")
        cursor.execute("BEGIN; INSERT INTO t VALUES (6, 'yes'); PREPARE TRANSACTION 'yes'")
        cursor.execute("ROLLBACK PREPARED 'no'")
        cursor.execute("COMMIT PREPARED 'yes'")
    connection.close()
    assert [row["id"] for row in read(source, 3)] == [2, 4, 6]
    source.close()


def test_transactions_come_in_the_order_of_their_commits(table: Table) -> None:
    source = table.opened()
    connection = table.broker.connect(table.database)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO t VALUES (1, 'began first')")
        table.run("INSERT INTO t VALUES (2, 'committed first')")
        assert read(source, 1)[0]["id"] == 2
        cursor.execute("COMMIT")
    connection.close()
    assert read(source, 1)[0]["id"] == 1
    source.close()


def test_a_large_transaction_is_split_and_continues_at_every_offset(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 30000) n")
    table.run("INSERT INTO t VALUES (0, 'last')")
    expected = [*range(1, 30_001), 0]
    done, offsets, start = 0, list[tuple[int, str]](), table.confirmed()
    while done < 30_000:
        batch = source.read(5_000, SECONDS)
        assert table.confirmed() == start, "the slot was advanced inside a transaction"
        found = [row["id"] for row in rows_of(batch)]
        assert batch is not None
        assert len(found) <= 5_000
        assert found == expected[done : done + len(found)]
        done += len(found)
        offsets.append((done, batch.offset))
    source.close()
    for done, offset in offsets:
        source = table.opened(offset)
        found = [row["id"] for row in rows_of(source.read(100, SECONDS))]
        assert found
        assert found == expected[done : done + 100][: len(found)]
        source.close()


def test_the_slot_is_advanced_only_after_the_commit(table: Table) -> None:
    source = table.opened()
    start = table.confirmed()
    table.run("INSERT INTO t VALUES (1, 'a')")
    read(source, 1)
    assert table.confirmed() == start
    source.close()
    source = table.opened()
    batch = source.read(10, SECONDS)
    assert [row["id"] for row in rows_of(batch)] == [1]
    assert source.read(10, 0.0) is None
    assert table.confirmed() > start
    source.close()


def test_a_batch_has_at_most_8_mib_or_one_larger_row(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t SELECT n, repeat('x', 1000000) FROM generate_series(1, 20) n")
    table.run("INSERT INTO t VALUES (21, repeat('y', 10000000)), (22, 'small')")
    found = list[int]()
    while len(found) < 22:
        batch = source.read(1000, SECONDS)
        assert batch is not None
        assert len(batch.rows) == 1 or sum(map(len, batch.rows)) <= 8 << 20
        found += [row["id"] for row in rows_of(batch)]
    assert found == list(range(1, 23))
    source.close()


def test_peek_takes_nothing(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    start = table.confirmed()
    other = table.source()
    for _ in range(2):
        assert [row["id"] for row in rows_of(other.peek(None, 10, SECONDS))] == [1]
    assert table.confirmed() == start
    assert [row["id"] for row in read(source, 1)] == [1]
    source.close()


def test_the_slot_moves_while_only_other_tables_change(table: Table) -> None:
    table.run("CREATE TABLE other (id int, text text)")
    source = table.opened(heartbeat="10ms")
    start = table.confirmed()
    table.run("INSERT INTO other SELECT n, repeat('x', 1000) FROM generate_series(1, 3000) n")
    batch = source.read(10, SECONDS)
    assert batch is not None
    assert not batch.rows
    assert source.read(10, 0.0) is None
    assert table.confirmed() > start + (1 << 20)
    source.close()


def test_many_changes_that_are_no_rows_do_not_stop_the_source(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHANGES_MAX", 10)
    source = table.opened(operations=["insert"])
    table.run("INSERT INTO t VALUES (1, 'a')")
    table.run("DO $$ BEGIN FOR n IN 1..25 LOOP UPDATE t SET text = n; COMMIT; END LOOP; END $$")
    table.run("INSERT INTO t SELECT n, 'b' FROM generate_series(2, 3) n")
    assert [row["id"] for row in read(source, 3)] == [1, 2, 3]
    source.close()


def test_a_slot_far_behind_the_offset_is_caught_up(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former active ended after a commit in the journal, and before it advanced the slot."""
    monkeypatch.setattr(reading, "CHANGES_MAX", 10)
    source, offset = table.opened(), None
    start = table.confirmed()
    table.run("DO $$ BEGIN FOR n IN 1..50 LOOP INSERT INTO t VALUES (n); COMMIT; END LOOP; END $$")
    done = 0
    while done < 40:
        batch = source.read(5, SECONDS)
        done += len(rows_of(batch))
        assert batch is not None
        offset = batch.offset
        source.close()
        source = table.opened(offset)
    assert table.confirmed() == start
    assert [row["id"] for row in read(source, 50 - done)] == [*range(done + 1, 51)]
    source.close()


def test_a_slot_that_is_lost_before_the_first_row_is_noticed(table: Table) -> None:
    source = table.opened()
    first = source.read(10, 0.0)
    assert first is not None
    assert not first.rows
    assert source.read(10, 0.0) is None
    source.close()
    table.run(f"SELECT pg_drop_replication_slot('{table.slot}')")
    table.run("INSERT INTO t VALUES (1, 'lost')")
    assert "dropped" in refusal(lambda: table.opened(first.offset))


# -- the form of rows ------------------------------------------------------------------------------


def test_a_row_has_the_position_the_time_and_the_old_row(table: Table) -> None:
    table.schema = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("op", pa.string()),
            ("lsn", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("before", pa.struct([("text", pa.string())])),
        ]
    )
    table.run("ALTER TABLE t REPLICA IDENTITY FULL")
    source = table.opened(lsn_column="lsn", commit_time_column="at", before_column="before")
    table.run("INSERT INTO t VALUES (1, 'a')")
    table.run("UPDATE t SET text = 'b'")
    table.run("DELETE FROM t")
    batch = source.read(10, SECONDS)
    assert batch is not None
    events = validate(Decoder(table.schema, 100), batch).events.to_pylist()
    while len(events) < 3:
        batch = source.read(10, SECONDS)
        assert batch is not None
        events += validate(Decoder(table.schema, 100), batch).events.to_pylist()
    assert [(row["op"], row["text"], row["before"]) for row in events] == [
        ("insert", "a", None),
        ("update", "b", {"text": "a"}),
        ("delete", "b", {"text": "b"}),
    ]
    assert events[0]["lsn"] < events[1]["lsn"] < events[2]["lsn"]
    assert events[0]["at"] <= events[2]["at"]
    source.close()


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS numeric(12, 3) CHECK (VALUE > 0);
CREATE TABLE v (
  id bigint PRIMARY KEY, b bool, i int, f double precision, n numeric(20, 5), d positive,
  t timestamptz, l timestamp, day date, bytes bytea, j jsonb, js json, u uuid, m mood,
  ints int[], texts text[], times timestamptz[], deep int[], bools bool[], span interval, ip inet,
  c char(5), big text, struct_text jsonb)
"""
TYPED = pa.schema(
    [
        ("id", pa.int64()),
        ("op", pa.string()),
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("n", pa.decimal128(20, 5)),
        ("d", pa.decimal128(12, 3)),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.timestamp("us")),
        ("day", pa.date32()),
        ("bytes", pa.binary()),
        ("j", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("js", pa.string()),
        ("u", pa.string()),
        ("m", pa.string()),
        ("ints", pa.list_(pa.int32())),
        ("texts", pa.list_(pa.string())),
        ("times", pa.list_(pa.timestamp("us", "UTC"))),
        ("deep", pa.list_(pa.list_(pa.int32()))),
        ("bools", pa.list_(pa.bool_())),
        ("span", pa.string()),
        ("ip", pa.string()),
        ("c", pa.string()),
        ("big", pa.string()),
        ("struct_text", pa.string()),
    ]
)
VALUES = """
(%s, true, -5, 1.5e-7, 12345.67890, 1.500, '2024-02-29 12:00:00.123456+02', '2024-02-29 12:00:00',
 '2024-02-29', '\\x00ff10', '{"a": 9007199254740993, "b": ["x", null]}', E'{"x":\\n 1}',
 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ok', '{1,NULL,3}', ARRAY['a"b', 'NULL', NULL, '', 'x,y',
 E'back\\\\slash', E'line\\nbreak', '{}'], ARRAY['2024-01-01 00:00:00+00'::timestamptz],
 '[0:1][1:2]={{1,2},{3,4}}', '{t,f}', '1 day 02:00', '10.0.0.1/8', 'ab', E'(1,"x")\\t\\\\ ''',
 '{"k": [1, 2]}')
"""


@pytest.mark.parametrize("initial", [False, True])
def test_every_type_follows_the_rules_of_an_event(table: Table, initial: bool) -> None:
    table.run(TYPES)
    table.schema = TYPED
    source = None if initial else table.opened(table="v")
    table.run(f"INSERT INTO v VALUES {VALUES % 1}")
    table.run("INSERT INTO v (id) VALUES (2)")
    source = source or table.opened(table="v", initial=True)
    events = list[dict[str, Any]]()
    while len(events) < 2:
        batch = source.read(10, SECONDS)
        assert batch is not None
        validated = validate(Decoder(TYPED, 100), batch)
        assert not validated.dead_letters, validated.dead_letters
        events += validated.events.to_pylist()
    first, second = events
    assert first["n"].as_tuple().digits[:5] == (1, 2, 3, 4, 5)
    assert str(first["d"]) == "1.500"
    assert first["t"].isoformat() == "2024-02-29T10:00:00.123456+00:00"
    assert first["l"].isoformat() == "2024-02-29T12:00:00"
    assert first["bytes"] == b"\x00\xff\x10"
    assert first["j"] == {"a": 9007199254740993, "b": ["x", None]}
    assert json.loads(first["js"]) == {"x": 1}
    assert first["u"] == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert first["m"] == "ok"
    assert first["ints"] == [1, None, 3]
    assert first["texts"] == ['a"b', "NULL", None, "", "x,y", "back\\slash", "line\nbreak", "{}"]
    assert first["times"][0].isoformat() == "2024-01-01T00:00:00+00:00"
    assert first["deep"] == [[1, 2], [3, 4]]
    assert first["bools"] == [True, False]
    assert first["span"] == "P1DT2H"
    assert first["ip"] == "10.0.0.1/8"
    assert first["c"] == "ab   "
    assert first["big"] == '(1,"x")\t\\ \''
    assert json.loads(first["struct_text"]) == {"k": [1, 2]}
    assert (first["b"], first["i"], first["f"]) == (True, -5, 1.5e-7)
    assert set(second) - {name for name, value in second.items() if value is None} == {"id", "op"}
    source.close()


def test_a_value_that_the_stream_cannot_hold_is_a_dead_letter(table: Table) -> None:
    table.run("CREATE TABLE v (id int PRIMARY KEY, f float8, n numeric, t timestamptz)")
    table.schema = pa.schema(
        [
            ("id", pa.int64()),
            ("op", pa.string()),
            ("f", pa.float64()),
            ("n", pa.decimal128(10, 2)),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    source = table.opened(table="v")
    table.run(
        "INSERT INTO v VALUES (1, 'NaN', 1, now()), (2, '-Infinity', 1, now()),"
        " (3, 1, 'NaN', now()), (4, 1, 1.005, now()), (5, 1, 1, 'infinity'),"
        " (6, 1, 1, '0044-03-15 00:00 BC'), (7, 1, 1, now())"
    )
    batch = source.read(10, SECONDS)
    assert batch is not None
    validated = validate(Decoder(table.schema, 100), batch)
    assert validated.events.column("id").to_pylist() == [7]
    assert len(validated.dead_letters) == 6
    assert "insert 1 of the transaction" in validated.dead_letters[0].place
    source.close()


def test_an_unchanged_large_value_is_refused_filled_or_named(table: Table) -> None:
    table.run("ALTER TABLE t ALTER text SET STORAGE EXTERNAL, ADD small int")
    large = "x" * 10_000
    table.schema = pa.schema([*SCHEMA, ("small", pa.int64())])
    source = table.opened()
    table.run(f"INSERT INTO t VALUES (1, '{large}', 1)")
    table.run("UPDATE t SET small = 2")
    table.run("ALTER TABLE t REPLICA IDENTITY FULL")
    table.run("UPDATE t SET small = 3")
    batch = source.read(1, SECONDS)
    assert batch is not None
    reason = refusal(lambda: source.read(1, SECONDS))
    assert "column 'text'" in reason
    assert "REPLICA IDENTITY FULL" in reason
    source.close()
    source = table.opened(batch.offset, unchanged="dead_letter")
    again = source.read(10, SECONDS)
    assert again is not None
    assert ["column 'text'" in letter.reason for letter in again.dead_letters] == [True]
    assert [json.loads(row)["small"] for row in again.rows] == [3]
    source.close()
    table.schema = pa.schema([*table.schema, ("same", pa.list_(pa.string()))])
    source = table.opened(batch.offset, unchanged_column="same")
    named, filled = read(source, 2)
    assert named == {"op": "update", "id": 1, "small": 2, "same": ["text"]}
    assert filled == {"op": "update", "id": 1, "small": 3, "text": large}
    source.close()


def test_an_unchanged_large_value_of_a_partition_is_no_null(table: Table) -> None:
    """The replica identity of the root is not that of its partition, which has the key alone."""
    table.run(
        "CREATE TABLE v (id int PRIMARY KEY, text text) PARTITION BY RANGE (id);"
        "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (100);"
        "ALTER TABLE v1 ALTER text SET STORAGE EXTERNAL; ALTER TABLE v REPLICA IDENTITY FULL"
    )
    source = table.opened(table="v")
    table.run(f"INSERT INTO v VALUES (1, '{'x' * 10_000}')")
    read(source, 1)
    table.run("UPDATE v SET id = 2")
    assert read(source, 1, rows_max=1) == [{"op": "delete", "id": 1}]
    assert "of each partition" in refusal(lambda: source.read(10, SECONDS))
    source.close()


# -- the initial read ------------------------------------------------------------------------------


def replay(rows: list[dict[str, Any]]) -> dict[int, str]:
    """The table that results from ``rows``. Each must make sense: nothing is repeated or lost."""
    table = dict[int, str]()
    for row in rows:
        key = row.get("id")
        match row["op"]:
            case "read" | "insert":
                assert key not in table, f"{row} repeats a row"
                table[key] = row["text"]
            case "update":
                assert key in table, f"{row} updates a row that was not read"
                table[key] = row["text"]
            case "delete":
                assert key in table, f"{row} deletes a row that was not read"
                del table[key]
            case "truncate":
                table.clear()
    return table


class Writers:
    """Random transactions of several sessions on the table, some of them open for a while."""

    def __init__(self, table: Table, chance: random.Random, truncates: bool) -> None:
        self._chance, self._truncates = chance, truncates
        self._sessions = [table.broker.connect(table.database) for _ in range(3)]
        self._open = [False] * len(self._sessions)
        for session in self._sessions:
            session.cursor().execute("SET lock_timeout = '20ms'")

    def step(self) -> None:
        chance = self._chance
        which = chance.randrange(len(self._sessions))
        cursor = self._sessions[which].cursor()
        if not self._open[which]:
            cursor.execute("BEGIN")
            self._open[which] = True
        for _ in range(chance.randrange(4)):
            cursor.execute("SAVEPOINT s")
            try:
                cursor.execute(self._statement())
            except Exception:
                cursor.execute("ROLLBACK TO s")
        if chance.random() < 0.6:
            self._end(which)

    def _statement(self) -> str:
        chance = self._chance
        key, other, text = chance.randrange(40), chance.randrange(40), f"'{chance.random()}'"
        kinds = [
            f"INSERT INTO t VALUES ({key}, {text})",
            f"INSERT INTO t VALUES ({key}, {text}) ON CONFLICT (id) DO UPDATE SET text = {text}",
            f"UPDATE t SET text = {text} WHERE id = {key}",
            f"UPDATE t SET id = {other} WHERE id = {key}",
            f"DELETE FROM t WHERE id = {key}",
        ]
        if self._truncates and chance.random() < 0.05:
            return "TRUNCATE t"
        return chance.choice(kinds)

    def _end(self, which: int) -> None:
        how = "COMMIT" if self._chance.random() < 0.8 else "ROLLBACK"
        self._sessions[which].cursor().execute(how)
        self._open[which] = False

    def end(self) -> None:
        for which, is_open in enumerate(self._open):
            if is_open:
                self._end(which)
        for session in self._sessions:
            session.close()


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(seed, marks=pytest.mark.nightly("more random histories"))
            for seed in range(1, 8)
        ),
    ],
)
def test_pages_and_changes_of_concurrent_writers_are_the_table(
    table: Table, seed: int, truncates: bool
) -> None:
    chance = random.Random(seed)
    table.options["initial"] = True
    table.run("INSERT INTO t SELECT n, 'old' FROM generate_series(0, 39, 2) n")
    writers = Writers(table, chance, truncates)
    # The slot waits for the transactions that run, so it comes before them.
    source, journal, offset = table.opened(), list[dict[str, Any]](), None
    table.options["timeout"] = "20ms"  # for a lock, which an open TRUNCATE has
    source.close()
    source, is_open = table.source(), False
    for _ in range(80):
        for _ in range(chance.randrange(3)):
            writers.step()
        try:
            if not is_open or chance.random() < 0.3:  # the next active, or the same one
                source.open(offset)
                is_open = True
            batch = source.read(chance.choice([1, 2, 5]), 0.0)
        except SourceUnavailable:  # it waited for the lock of a TRUNCATE
            is_open = False
            continue
        if batch is None:
            continue
        if chance.random() < 0.2:  # the batch is lost with the active
            is_open = False
            continue
        offset = batch.offset
        journal += rows_of(batch)
    writers.end()
    expected = {row[0]: row[1] for row in table.run("SELECT id, text FROM t")}
    source.close()
    table.options["timeout"] = "300s"
    source = table.opened(offset)
    while (batch := source.read(7, 0.3)) is not None:
        journal += rows_of(batch)
    source.close()
    assert replay(journal) == expected


def test_a_page_waits_for_a_transaction_that_only_the_log_has(table: Table) -> None:
    """A commit that waits for a synchronous standby is in the log, and no snapshot sees it."""
    table.options["initial"] = True
    table.run("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 4) n")
    source = table.opened()
    # The log must be read up to this change before the page after the next one.
    table.run("UPDATE t SET text = 'a' WHERE id = 1")
    journal = rows_of(source.read(2, SECONDS))
    with commit_that_waits(table):
        while (batch := source.read(10, 0.0)) is not None:
            journal += rows_of(batch)
        assert len(journal) == 2, "a page was read without a transaction that was passed in the log"
    expected = table.run("SELECT id FROM t ORDER BY id")
    journal += read(source, len(expected) - 2)
    assert [(row["id"],) for row in journal] == expected
    source.close()


def test_a_read_ends_while_a_page_waits_and_others_write(table: Table) -> None:
    table.run(f"CREATE PUBLICATION {table.slot} FOR TABLE t; INSERT INTO t VALUES (1, 'a')")
    table.run("CREATE TABLE other (id int)")
    table.run(f"SELECT pg_create_logical_replication_slot('{table.slot}', 'pgoutput')")
    unfinished = table.broker.connect(table.database).cursor()
    unfinished.execute("BEGIN; INSERT INTO other VALUES (1)")
    source = table.opened(initial=True)
    peek, peeks = Server.peek, 0

    def peek_and_write(*given: Any) -> Any:
        nonlocal peeks
        peeks += 1
        table.run("INSERT INTO other VALUES (1)")
        assert peeks < 10, "the read goes on as long as others write"
        return peek(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "peek", peek_and_write)
        assert source.read(10, 0.0) is None
    unfinished.execute("COMMIT")
    assert [row["id"] for row in read(source, 1)] == [1]
    source.close()


@contextmanager
def commit_that_waits(table: Table) -> Iterator[None]:
    """Let an insert into the table wait for a synchronous standby: it is in the log already."""
    table.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    ended = threading.Event()

    def write() -> None:
        connection = table.broker.connect(table.database)
        key = 10
        while not ended.is_set():  # the first commit after the server has read its configuration
            connection.cursor().execute(f"INSERT INTO t VALUES ({key}, 'b')")
            key += 1
        connection.close()

    writer = threading.Thread(target=write)
    try:
        table.run("SELECT pg_reload_conf()")
        writer.start()
        wait_until(lambda: table.run("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        ended.set()
        yield
    finally:
        ended.set()
        table.run("ALTER SYSTEM RESET synchronous_standby_names")
        table.run("SELECT pg_reload_conf()")
        writer.join()


def test_the_first_page_has_what_a_new_slot_has_passed(table: Table) -> None:
    """The slot waits for two transactions in turn. A third one begins before the second ends, and
    its commit is in the log before the slot's beginning, and in no snapshot."""
    table.options["initial"] = True
    table.run("CREATE TABLE other (id int)")
    waiting = "SELECT 1 FROM pg_locks WHERE transactionid = '{}' AND NOT granted"
    first, second = (table.broker.connect(table.database).cursor() for _ in range(2))

    def begin(cursor: Any) -> str:
        cursor.execute("BEGIN; INSERT INTO other VALUES (1); SELECT pg_current_xact_id()::text")
        return waiting.format(cursor.fetchone()[0])

    source, blocked = table.source(), begin(first)
    opening = threading.Thread(target=source.open, args=(None,))
    opening.start()
    wait_until(lambda: table.run(blocked))
    blocked = begin(second)
    first.execute("ROLLBACK")
    wait_until(lambda: table.run(blocked))
    with commit_that_waits(table):
        second.execute("ROLLBACK")
        opening.join()
        assert source.read(10, 0.0) is None, "a page was read without a transaction of the log"
    expected = table.run("SELECT id FROM t ORDER BY id")
    assert [(row["id"],) for row in read(source, len(expected))] == expected
    source.close()


def test_the_order_of_pages_is_that_of_the_database(table: Table) -> None:
    table.run(
        "CREATE TYPE size AS ENUM ('small', 'large', 'huge');"
        "CREATE TABLE v (a size, b numeric, text text, PRIMARY KEY (a, b))"
    )
    table.schema = pa.schema([(name, pa.string()) for name in ("a", "b", "text", "op")])
    table.run(
        "INSERT INTO v SELECT x, n, 'o' FROM unnest('{small,large,huge}'::size[]) x,"
        " unnest('{8,9,10,11}'::int[]) n"
    )
    source = table.opened(table="v", initial=True)
    first = source.read(5, SECONDS)
    journal = rows_of(first)
    table.run("UPDATE v SET text = 'new'")
    assert first is not None
    source = table.opened(first.offset, table="v", initial=True)
    while (batch := source.read(5, 0.3)) is not None:
        journal += rows_of(batch)
    source.close()
    seen = dict[tuple[str, str], str]()
    for row in journal:
        key = row["a"], row["b"]
        assert (row["op"] == "read") == (key not in seen)
        seen[key] = row["text"]
    assert len(seen) == 12
    assert set(seen.values()) == {"new"}


def test_a_key_whose_operators_are_in_no_search_path_is_read_in_its_order(table: Table) -> None:
    """A type like citext: the order ignores the case, and the cast to text is implicit."""
    lower = 'lower($1::text) COLLATE "C"', 'lower($2::text) COLLATE "C"'
    table.run(
        "CREATE TYPE ci;"
        "CREATE FUNCTION ci_in(cstring) RETURNS ci AS 'textin' LANGUAGE internal;"
        "CREATE FUNCTION ci_out(ci) RETURNS cstring AS 'textout' LANGUAGE internal;"
        "CREATE TYPE ci (INPUT = ci_in, OUTPUT = ci_out, LIKE = text);"
        "CREATE CAST (ci AS text) WITHOUT FUNCTION AS IMPLICIT;"
        "CREATE FUNCTION ci_cmp(ci, ci) RETURNS int LANGUAGE sql IMMUTABLE STRICT AS"
        f" $$ SELECT bttextcmp({', '.join(lower)}) $$"
    )
    for number, operator in enumerate(("<", "<=", "=", ">=", ">")):
        table.run(
            f"CREATE FUNCTION ci{number}(ci, ci) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS"
            f" $$ SELECT {lower[0]} {operator} {lower[1]} $$;"
            f"CREATE OPERATOR {operator} (LEFTARG = ci, RIGHTARG = ci, FUNCTION = ci{number})"
        )
    table.run(
        "CREATE OPERATOR CLASS ci_ops DEFAULT FOR TYPE ci USING btree AS OPERATOR 1 <,"
        " OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 ci_cmp(ci, ci);"
        "CREATE TABLE v (a ci, b int, PRIMARY KEY (a, b));"
        "INSERT INTO v SELECT x, n FROM unnest('{a,B,c,D}'::text[]::ci[]) x,"
        " generate_series(9, 10) n"
    )
    table.schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("op", pa.string())])
    source = table.opened(table="v", initial=True)
    journal = rows_of(source.read(3, SECONDS))
    table.run("UPDATE v SET b = b")
    while (batch := source.read(3, 0.3)) is not None:
        journal += rows_of(batch)
    source.close()
    reads = [(row["a"], row["b"]) for row in journal if row["op"] == "read"]
    assert reads == [(a, b) for a in "aBcD" for b in (9, 10)]
    assert sum(row["op"] == "update" for row in journal) == 3, "the changes of the first page only"


def test_a_percent_sign_in_a_name_is_no_placeholder(table: Table) -> None:
    table.run('CREATE TABLE "100%" ("%s" int PRIMARY KEY, "rate_%" int)')
    table.run('INSERT INTO "100%" VALUES (1, 5), (2, 6)')
    table.schema = pa.schema([("%s", pa.int64()), ("rate_%", pa.int64()), ("op", pa.string())])
    source = table.opened(table="100%", initial=True)
    expected = [{"op": "read", "%s": n, "rate_%": n + 4} for n in (1, 2)]
    assert read(source, 2, rows_max=1) == expected
    source.close()


def test_a_primary_key_that_changes_between_two_pages_is_refused(table: Table) -> None:
    table.run("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 12) n")
    table.options["initial"] = True
    source = table.opened()
    first = source.read(5, SECONDS)
    assert first is not None
    table.run("ALTER TABLE t ALTER id TYPE text")  # 10, 11 and 12 come before the next page now
    with pytest.raises(SourceRefused):
        source.read(5, SECONDS)
    reason = refusal(lambda: table.opened(first.offset))
    assert "primary key" in reason
    assert '"id" integer' in reason
    table.run("ALTER TABLE t ALTER id TYPE int USING id::int")
    source = table.opened(first.offset)
    table.run("ALTER TABLE t ADD extra int")
    assert "altered" in refusal(lambda: source.read(5, SECONDS), SourceUnavailable)
    source = table.opened(first.offset)
    assert "'extra'" in refusal(lambda: source.read(7, SECONDS))
    table.options["ignore_columns"] = ["extra"]
    source = table.opened(first.offset)
    assert [row["id"] for row in read(source, 7)] == list(range(6, 13))
    source.close()


def test_a_filtered_and_partitioned_table_is_read_through_its_root(table: Table) -> None:
    table.run(
        "CREATE TABLE v (id int PRIMARY KEY, text text, hidden int) PARTITION BY RANGE (id);"
        "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE v2 PARTITION OF v FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION p FOR TABLE v (id, text) WHERE (id % 2 = 0)"
        " WITH (publish_via_partition_root = true);"
        "INSERT INTO v SELECT n, 'a', 0 FROM generate_series(8, 12) n"
    )
    source = table.opened(table="v", publication="p", initial=True)
    assert [row["id"] for row in read(source, 3)] == [8, 10, 12]
    table.run("INSERT INTO v VALUES (13, 'b', 0), (14, 'b', 0), (6, 'b', 0)")
    assert [row["id"] for row in read(source, 2)] == [14, 6]
    source.close()


# -- failures --------------------------------------------------------------------------------------


def test_a_server_that_is_killed_loses_and_repeats_nothing(broker: Broker, table: Table) -> None:
    table.options["initial"] = True
    table.run("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 10) n")
    source = table.opened()
    journal = read(source, 4, rows_max=4)
    batch = source.read(4, SECONDS)
    journal += rows_of(batch)
    table.run("UPDATE t SET text = 'b' WHERE id <= 5")
    broker.kill()
    reason = refusal(lambda: source.read(4, 0.1), SourceUnavailable)
    assert "cannot be reached" in reason or "answers" in reason
    assert batch is not None
    refusal(lambda: source.open(batch.offset), SourceUnavailable)
    broker.start()
    source = table.opened(batch.offset)
    while (more := source.read(4, 0.5)) is not None:
        journal += rows_of(more)
    source.close()
    assert replay(journal) == {n: "b" if n <= 5 else "a" for n in range(1, 11)}


def test_an_older_offset_than_the_slot_is_refused_and_may_be_skipped(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    first = source.read(10, SECONDS)
    assert first is not None
    table.run("INSERT INTO t VALUES (2, 'b')")
    read(source, 1)
    source.read(10, 0.0)  # the slot moves
    source.close()
    confirmed = table.confirmed_text()
    reason = refusal(lambda: table.opened(first.offset))
    assert confirmed in reason
    assert "skip_to" in reason
    refusal(lambda: table.opened(first.offset, skip_to="0/1"))
    table.run("INSERT INTO t VALUES (3, 'c')")
    source = table.opened(first.offset, skip_to=confirmed)
    assert [row["id"] for row in read(source, 1)] == [3]
    source.close()


def test_a_slot_that_is_gone_or_taken_or_advanced_is_refused(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    batch = source.read(10, SECONDS)
    assert batch is not None
    table.run("INSERT INTO t VALUES (2, 'a')")
    table.run(f"SELECT pg_replication_slot_advance('{table.slot}', pg_current_wal_lsn())")
    assert "advanced" in refusal(lambda: source.read(10, SECONDS))
    table.run(f"SELECT pg_drop_replication_slot('{table.slot}')")
    source.close()
    reason = refusal(lambda: table.opened(batch.offset))
    assert table.slot in reason
    assert "dropped" in reason
    table.run(f"SELECT pg_create_physical_replication_slot('{table.slot}')")
    try:
        assert "physical replication" in refusal(lambda: table.opened())
    finally:
        table.run(f"SELECT pg_drop_replication_slot('{table.slot}')")


def test_log_that_the_server_removed_is_refused(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    first = source.read(10, SECONDS)
    assert first is not None
    table.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        table.run("SELECT pg_reload_conf()")

        def is_lost() -> bool:
            table.run("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
            table.run("CHECKPOINT")
            return table.run(
                f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{table.slot}'"
            ) == [("lost",)]

        wait_until(is_lost)
    finally:
        table.run("ALTER SYSTEM RESET max_slot_wal_keep_size")
        table.run("SELECT pg_reload_conf()")
    reason = refusal(lambda: source.read(10, SECONDS))
    assert "skip_to" in reason
    source.close()
    reason = refusal(lambda: table.opened(first.offset))
    assert table.slot in reason
    assert "max_slot_wal_keep_size" in reason
    assert "max_slot_wal_keep_size" in refusal(table.source().check)


def test_a_restored_server_is_refused_where_its_log_differs() -> None:
    with new_broker() as broker, broker.database("cdc") as name:
        table = Table(broker, name)
        table.run("CREATE TABLE t (id int PRIMARY KEY, text text); INSERT INTO t VALUES (0, 'a')")
        source = table.opened()
        table.run("INSERT INTO t VALUES (1, 'a')")
        early = source.read(10, SECONDS)
        assert early is not None
        source.close()
        broker.stop()
        broker.save()
        broker.start()
        source = table.opened(early.offset)
        table.run("INSERT INTO t VALUES (2, 'only before the restore')")
        late = source.read(10, SECONDS)
        assert late is not None
        source.close()

        broker.stop()
        broker.restore()
        broker.start()
        assert "set back" in refusal(lambda: table.opened(late.offset))
        broker.stop()
        broker.promote_at_start()
        broker.start()
        reason = refusal(lambda: table.opened(late.offset))
        assert "timeline 2" in reason
        table.run("INSERT INTO t VALUES (3, 'c')")
        source = table.opened(late.offset, skip_to=table.confirmed_text())
        assert [row["id"] for row in read(source, 1)] == [3]
        source.close()
        source = table.opened(early.offset)
        assert [row["id"] for row in read(source, 1)] == [3]
        source.close()


@needs("openssl")
def test_the_server_is_verified_and_the_password_is_needed(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    files = authority.files("server", san="IP:127.0.0.1")
    with new_broker() as broker, broker.database("cdc") as name:
        broker.stop()
        broker.require_password()
        broker.start()
        table = Table(broker, name)
        # What the documentation asks for, and no more.
        table.run(
            "CREATE TABLE t (id int PRIMARY KEY, text text); INSERT INTO t VALUES (1, 'a');"
            "CREATE ROLE reader LOGIN REPLICATION PASSWORD 's3cret'; GRANT SELECT ON t TO reader;"
            "CREATE PUBLICATION p FOR TABLE t"
        )
        with tls_front(broker.tcp_port, files) as port:
            table.options = {"host": "127.0.0.1", "port": port, "user": "reader", "initial": True}
            table.options |= {"password": "s3cret", "publication": "p", "create": False}
            table.options |= {"ca_file": authority.certificate}
            source = table.opened()
            table.run("INSERT INTO t VALUES (2, 'b')")
            assert [row["id"] for row in read(source, 2)] == [1, 2]
            source.close()

            def refused(**options: Any) -> str:
                return refusal(lambda: table.opened(**options))

            wrong = refused(password="hunter2")
            assert "password authentication failed" in wrong
            assert "hunter2" not in wrong
            assert "no password supplied" in refused(password=None)
            assert "certificate verify failed" in refused(ca_file=other.certificate)
            assert "does not match" in refused(host="localhost")
            assert "does not support SSL" in refused(port=broker.tcp_port)
            assert "not exist" in refused(ca_file=tmp_path / "no.pem")
            for signer, is_trusted in ((authority, True), (other, False)):
                client = signer.files("reader")
                Path(client["key"]).chmod(0o600)
                given = {"certificate_file": client["certificate"], "key_file": client["key"]}
                if is_trusted:
                    table.opened(**given).close()
                else:
                    with pytest.raises((SourceRefused, SourceUnavailable)):
                        table.opened(**given)


def test_a_former_active_does_no_harm(table: Table) -> None:
    former = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    first = former.read(10, SECONDS)
    assert first is not None
    following = table.opened(first.offset)
    table.run("INSERT INTO t VALUES (2, 'b')")
    second = following.read(10, SECONDS)
    assert [row["id"] for row in rows_of(second)] == [2]
    assert [row["id"] for row in rows_of(former.read(10, SECONDS))] == [2]  # never journalled
    following.read(10, 0.0)
    confirmed = table.confirmed()
    table.run("INSERT INTO t VALUES (3, 'c')")
    former.close()
    assert table.confirmed() == confirmed
    assert [row["id"] for row in read(following, 1)] == [3]
    following.close()


def test_what_the_server_lacks_is_named(table: Table) -> None:
    assert "CREATE PUBLICATION" in refusal(lambda: table.opened(create=False))
    assert '"no"' in refusal(lambda: table.opened(table="no", publication="p", create=True))
    table.run("CREATE TABLE other (id int); CREATE PUBLICATION p FOR TABLE other")
    assert "ADD TABLE" in refusal(lambda: table.opened(publication="p"))
    table.run("CREATE PUBLICATION q FOR TABLE t WITH (publish = 'insert')")
    assert "delete, truncate, update" in refusal(lambda: table.opened(publication="q"))
    table.run("CREATE TABLE v (id int, text text); CREATE PUBLICATION r FOR TABLE v")
    reason = refusal(lambda: table.opened(publication="r", table="v", initial=True))
    assert "primary key" in reason
    assert not table.run(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{table.slot}'")


def test_a_user_without_rights_is_named_and_no_secret_is_shown(table: Table) -> None:
    role = f"weak_{table.database}"
    table.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'; CREATE PUBLICATION p FOR TABLE t")
    source = table.source(user=role, publication="p", password="hunter2")
    assert "REPLICATION" in refusal(source.check)
    assert "REPLICATION" in refusal(lambda: source.open(None))
    table.run(f"ALTER ROLE {role} REPLICATION")
    source.check()
    weak = table.source(user=role, publication="p", initial=True)
    assert "GRANT SELECT" in refusal(weak.check)
    nobody = table.source(user="nobody", password="hunter2")
    reason = refusal(nobody.check)
    assert "nobody" in reason
    assert "hunter2" not in reason
    assert "hunter2" not in repr(nobody._options)
    source.close()
    table.run(f"DROP PUBLICATION p; DROP ROLE {role}")


def test_a_user_that_only_reads_by_default_may_name_several_hosts(table: Table) -> None:
    table.run(f"ALTER DATABASE {table.database} SET default_transaction_read_only = on")
    source = table.opened(host=f"{table.broker.host},{table.broker.host}")
    assert source.read(10, 0.0) is not None
    source.close()


def test_a_server_that_does_not_answer_is_unavailable(table: Table) -> None:
    reason = refusal(lambda: table.opened(host="127.0.0.1", port=1), SourceUnavailable)
    assert "127.0.0.1" in reason


def test_a_changed_table_is_refused_until_the_stream_fits(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    table.run("ALTER TABLE t ADD extra int")
    table.run("INSERT INTO t VALUES (2, 'b', 3)")
    first = source.read(1, SECONDS)
    assert first is not None
    reason = refusal(lambda: source.read(1, SECONDS))
    assert "'extra'" in reason
    assert "ignore_columns" in reason
    source.close()
    source = table.opened(first.offset, ignore_columns=["extra"])
    assert read(source, 1) == [{"op": "insert", "id": 2, "text": "b"}]
    source.close()
    table.schema = pa.schema([*SCHEMA, ("extra", pa.int64())])
    source = table.opened(first.offset)
    assert read(source, 1) == [{"op": "insert", "id": 2, "text": "b", "extra": 3}]
    source.close()


def test_rows_before_a_refused_one_are_read(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b')")
    table.run("ALTER TABLE t ADD extra int; INSERT INTO t VALUES (3, 'c', 4)")
    first = source.read(10, SECONDS)
    assert [row["id"] for row in rows_of(first)] == [1, 2]
    assert "'extra'" in refusal(lambda: source.read(10, SECONDS))
    assert first is not None
    source = table.opened(first.offset, ignore_columns=["extra"])
    assert [row["id"] for row in read(source, 1)] == [3]
    source.close()


def test_a_column_of_the_stream_is_never_null_by_accident(table: Table) -> None:
    table.run("ALTER TABLE t ADD sum int GENERATED ALWAYS AS (id + 1) STORED, ADD gone int")
    table.schema = pa.schema([*SCHEMA, ("gone", pa.int64()), ("sum", pa.int64())])
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    assert "'sum'" in refusal(lambda: source.read(1, SECONDS))
    source = table.opened(absent_columns=["sum"])
    table.run("ALTER TABLE t DROP gone")
    table.run("INSERT INTO t VALUES (2, 'a')")
    first = source.read(1, SECONDS)
    assert [row["id"] for row in rows_of(first)] == [1]
    reason = refusal(lambda: source.read(1, SECONDS))
    assert "'gone'" in reason
    assert "absent_columns" in reason
    source.close()
    assert first is not None
    source = table.opened(first.offset, absent_columns=["sum", "gone"])
    assert read(source, 1) == [{"op": "insert", "id": 2, "text": "a"}]
    source.close()


def test_a_changed_type_is_refused_and_makes_no_dead_letters(table: Table) -> None:
    table.run("ALTER TABLE t ADD number int")
    table.schema = pa.schema([*SCHEMA, ("number", pa.int64())])
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a', 1)")
    table.run("ALTER TABLE t ALTER number TYPE bigint")
    table.run("INSERT INTO t VALUES (2, 'a', 5000000000)")
    assert [row["number"] for row in read(source, 2)] == [1, 5_000_000_000]
    table.run("ALTER TABLE t ALTER number TYPE text")
    table.run("INSERT INTO t VALUES (3, 'a', 'many')")
    reason = refusal(lambda: source.read(10, SECONDS))
    assert "'number'" in reason
    assert "int64" in reason
    source.close()


def test_a_renamed_table_is_followed_under_its_new_name(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    first = source.read(10, SECONDS)
    assert first is not None
    table.run("ALTER TABLE t RENAME TO t2; CREATE TABLE t (id int PRIMARY KEY, text text)")
    table.run("INSERT INTO t2 VALUES (2, 'b'); INSERT INTO t VALUES (7, 'other')")
    assert '"public"."t2"' in refusal(lambda: source.read(10, SECONDS))
    source.close()
    assert '"public"."t2"' in refusal(lambda: table.opened(first.offset))
    source = table.opened(first.offset, table="t2")
    table.run("INSERT INTO t2 VALUES (3, 'c')")
    assert [row["id"] for row in read(source, 2)] == [2, 3]
    source.close()


def test_a_table_that_was_created_again_is_refused_and_may_be_continued(table: Table) -> None:
    table.run("INSERT INTO t VALUES (1, 'a')")
    source = table.opened(initial=True)
    first = source.read(1, SECONDS)
    assert first is not None
    table.run("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, text text)")
    table.run(f"ALTER PUBLICATION {table.slot} ADD TABLE t; INSERT INTO t VALUES (2, 'b')")
    for work in (lambda: source.read(1, SECONDS), lambda: table.opened(first.offset)):
        assert "was dropped" in refusal(work)
    table.run("INSERT INTO t VALUES (3, 'c')")
    slot = table.confirmed_text()
    source = table.opened(first.offset, initial=True, skip_to=slot)
    assert [row["id"] for row in read(source, 2)] == [2, 3]
    source.close()


def test_a_table_that_left_the_publication_for_a_while_is_refused(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    first = source.read(1, SECONDS)
    assert first is not None
    table.run(f"ALTER PUBLICATION {table.slot} DROP TABLE t")
    table.run("INSERT INTO t VALUES (3, 'lost')")
    table.run(f"ALTER PUBLICATION {table.slot} ADD TABLE t")
    source.close()
    reason = refusal(lambda: table.opened(first.offset))
    assert "pg_replication_slot_advance" in reason
    table.run(f"SELECT pg_replication_slot_advance('{table.slot}', pg_current_wal_lsn())")
    table.run("INSERT INTO t VALUES (4, 'd')")
    source = table.opened(first.offset, skip_to=table.confirmed_text())
    assert [row["id"] for row in read(source, 1)] == [4]
    source.close()


@pytest.mark.parametrize("parameter", ["publish = 'insert'", "publish_via_partition_root = false"])
def test_a_publication_with_other_parameters_is_noticed(table: Table, parameter: str) -> None:
    table.run(
        "CREATE TABLE v (id int PRIMARY KEY, text text) PARTITION BY RANGE (id);"
        "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (100)"
    )
    source = table.opened(table="v")
    assert source.read(10, 0.0) is not None
    table.run(f"ALTER PUBLICATION {table.slot} SET ({parameter})")
    table.run("INSERT INTO v VALUES (1, 'a')")
    assert "parameters" in refusal(lambda: source.read(10, SECONDS), SourceUnavailable)
    assert "publi" in refusal(lambda: table.opened(table="v"))


def test_a_dropped_publication_is_named(table: Table) -> None:
    source = table.opened()
    table.run(f"INSERT INTO t VALUES (1, 'a'); DROP PUBLICATION {table.slot}")
    table.run("INSERT INTO t VALUES (2, 'a')")
    assert table.slot in refusal(lambda: source.read(10, SECONDS))
    source.close()


def test_a_stream_that_cannot_hold_the_rows_is_refused(table: Table) -> None:
    strict = pa.field("id", pa.int64(), nullable=False)
    table.schema = pa.schema([strict, ("text", pa.string()), ("op", pa.string())])
    assert "truncat" in refusal(lambda: table.opened())
    operations = ["insert", "update", "delete"]
    table.opened(operations=operations).close()
    table.schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    assert "'op'" in refusal(lambda: table.opened())


def test_a_busy_slot_is_waited_for(table: Table) -> None:
    source = table.opened()
    table.run("INSERT INTO t VALUES (1, 'a')")
    taker = psycopg2.connect(
        host=table.broker.host,
        port=table.broker.port,
        user="postgres",
        dbname=table.database,
        connection_factory=LogicalReplicationConnection,
    )
    cursor = taker.cursor()
    cursor.start_replication(
        slot_name=table.slot,
        options={"proto_version": "1", "publication_names": table.slot},
    )
    assert "active" in refusal(lambda: source.read(10, 0.2), SourceUnavailable)
    taker.close()
    source = table.opened()
    assert [row["id"] for row in read(source, 1)] == [1]
    source.close()


def test_a_source_is_a_plug_in(table: Table) -> None:
    plugin: SourcePlugin = table.source()
    plugin.close()
