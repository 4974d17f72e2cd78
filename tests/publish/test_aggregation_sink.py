"""The tables of an aggregation on a real PostgreSQL, and the HTTP route that reads them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import text
from starlette.exceptions import HTTPException

from ha_engine.aggregation import GRANULARITIES, Aggregation, Question, Value
from ha_engine.api.aggregations import WAITING_MAX, aggregation_routes
from ha_engine.api.http import http_error
from ha_engine.auth import OPEN, Access, Right, digest_of
from ha_engine.errors import Fenced, NotAValue, SinkRefused
from ha_engine.postgres.aggregation_reader import AggregationReader
from ha_engine.postgres.aggregation_tables import AggregationStore
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.publish.sinks.postgres import PostgresSink
from ha_engine.web.route import guarded
from tests.publish.batches import GROUP, QUERY, batch_of, execute, ledger_of, rows_of, soon
from tests.waiting import wait_until

BERLIN = ZoneInfo("Europe/Berlin")
VALUES = (
    Value("total", "sum", "amount"),
    Value("n", "count", None),
    Value("known", "count", "amount"),
    Value("lowest", "min", "amount"),
    Value("highest", "max", "amount"),
    Value("mean", "avg", "amount"),
)
SALES = Aggregation(
    "sales", "sales", "at", ("region", "product"), GRANULARITIES, VALUES, time_zone="Europe/Berlin"
)
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("region", pa.string()),
        ("product", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
    ]
)
Row = dict[str, Any]


def _sink(url: str, aggregation: Aggregation = SALES) -> PostgresSink:
    store = AggregationStore(
        open_engine(url), LedgerKey("default", QUERY, aggregation.name), aggregation
    )
    return PostgresSink(aggregation.name, store)


def _publish(sink: PostgresSink, directory: Path, number: int, rows: Iterable[Row]) -> None:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    sink.publish(number, batch_of(directory, table, number), 1, soon())


def _row(at: datetime, region: str | None = "north", amount: str | None = "1.50") -> Row:
    value = None if amount is None else Decimal(amount)
    return {"at": at, "region": region, "product": 7, "amount": value}


def _start(granularity: str, at: datetime) -> datetime:
    """The start of a period, computed without PostgreSQL."""
    local = at.astimezone(BERLIN)
    match granularity:
        case "second" | "minute" | "hour":
            # In UTC, since an hour of the autumn is there twice.
            return at - (at - datetime(2026, 1, 1, tzinfo=UTC)) % timedelta(
                **{f"{granularity}s": 1}
            )
        case "week":
            local -= timedelta(days=local.weekday())
        case "month":
            local = local.replace(day=1)
        case "year":
            local = local.replace(month=1, day=1)
    return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)


def _expected(granularity: str, rows: Iterable[Row]) -> dict[Any, Any]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        key = _start(granularity, row["at"]), row["region"], row["product"]
        groups[key].append(row["amount"])
    return {key: _values(amounts) for key, amounts in groups.items()}


def _values(amounts: list[Decimal | None]) -> tuple[Any, ...]:
    known = [amount for amount in amounts if amount is not None]
    if not known:
        return None, len(amounts), 0, None, None, None
    mean = round(float(sum(known)) / len(known), 9)
    return sum(known), len(amounts), len(known), min(known), max(known), mean


def _found(reader: AggregationReader, granularity: str) -> dict[Any, Any]:
    question = Question(granularity, SALES.by, {}, rows_max=10_000)
    rows = [json.loads(row, parse_float=Decimal) for row in reader.rows(question)]
    return {
        (
            datetime.fromisoformat(row["start"]).astimezone(UTC),
            row["region"],
            row["product"],
        ): (
            row["total"],
            row["n"],
            row["known"],
            row["lowest"],
            row["highest"],
            None if row["mean"] is None else round(float(row["mean"]), 9),
        )
        for row in rows
    }


@pytest.fixture
def reader(database_url: str) -> Iterator[AggregationReader]:
    with closing(AggregationReader(open_engine(database_url), SALES)) as opened:
        yield opened


def test_each_granularity_equals_a_direct_computation_however_batches_are_cut(
    database_url: str, tmp_path: Path, reader: AggregationReader
) -> None:
    random = Random(7)
    # Around the end of summer time, and of a year.
    days = [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 12, 31, 22, 59, tzinfo=UTC)]
    rows = [
        _row(
            random.choice(days) + timedelta(milliseconds=random.randrange(7_200_000)),
            random.choice(["north", "it's 'south'", None]),
            random.choice([None, f"{random.randrange(-(10**6), 10**6) / 100:.2f}"]),
        )
        for _ in range(400)
    ]
    sink, begin = _sink(database_url), 0
    sink.claim(1, 0, GROUP, soon())
    for number, end in enumerate([1, 3, 50, 399, 400], start=1):
        _publish(sink, tmp_path, number, rows[begin:end])
        begin = end
    sink.close()
    for granularity in GRANULARITIES:
        assert _found(reader, granularity) == _expected(granularity, rows), granularity


def test_batch_counts_once_however_often_it_is_delivered(database_url: str, tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    first = _sink(database_url)
    first.claim(1, 0, GROUP, soon())
    for _ in range(2):
        _publish(first, tmp_path, 1, [_row(moment)])
    second = _sink(database_url)
    assert second.claim(2, 0, GROUP, soon()) == 1
    with pytest.raises(Fenced):
        _publish(first, tmp_path, 2, [_row(moment)])
    assert rows_of(database_url, "SELECT n FROM sales_day") == [(1,)]
    assert ledger_of(database_url) == (2, 1)


def test_batch_of_which_one_table_refuses_a_row_changes_no_table(
    database_url: str, tmp_path: Path
) -> None:
    sink = _sink(database_url)
    sink.prepare(SCHEMA)
    sink.claim(1, 0, GROUP, soon())
    execute(database_url, "ALTER TABLE sales_year ADD CHECK (total < 10)")
    with pytest.raises(SinkRefused, match="violates check constraint"):
        _publish(sink, tmp_path, 1, [_row(datetime(2026, 3, 1, tzinfo=UTC), amount="10.00")])
    assert rows_of(database_url, "SELECT * FROM sales_second") == []
    assert ledger_of(database_url) == (1, 0)


def test_old_periods_are_deleted_and_do_not_begin_again(database_url: str, tmp_path: Path) -> None:
    kept = replace(SALES, per=("second", "year"), keep={"second": 3600})
    now = datetime.now(UTC)
    sink = _sink(database_url, kept)
    sink.prepare(SCHEMA)
    sink.claim(1, 0, GROUP, soon())
    execute(
        database_url,
        "INSERT INTO sales_second (start, region, n, known, mean_count)"
        " SELECT now() - interval '2 hours' - make_interval(secs => i), 'old', 1, 1, 1"
        " FROM generate_series(1, 10500) i",
    )
    late = now - timedelta(hours=2)
    _publish(sink, tmp_path, 1, [_row(now), _row(late)])
    assert rows_of(database_url, "SELECT count(*), sum(n) FROM sales_second") == [(497, 497)]
    _publish(sink, tmp_path, 2, [_row(now, "south")])
    regions = rows_of(database_url, "SELECT region FROM sales_second ORDER BY region")
    assert regions == [("north",), ("south",)]
    assert rows_of(database_url, "SELECT sum(n) FROM sales_year") == [(3,)]


def test_sum_of_floats_is_of_double_precision(database_url: str, tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("x", pa.float32())])
    floats = Aggregation("f", "reports.f", "at", (), ("day",), (Value("total", "sum", "x"),))
    rows = [{"at": datetime(2026, 3, 1, tzinfo=UTC), "x": 2.0**24}] + [
        {"at": datetime(2026, 3, 1, tzinfo=UTC), "x": 1.0}
    ] * 2
    sink = _sink(database_url, floats)
    sink.claim(1, 0, GROUP, soon())
    batch = batch_of(tmp_path, pa.Table.from_pylist(rows, schema=schema))
    sink.publish(1, batch, 1, soon())
    assert rows_of(database_url, "SELECT total FROM reports.f_day") == [(2.0**24 + 2,)]


def test_tables_that_do_not_fit_are_refused(database_url: str) -> None:
    _sink(database_url).prepare(SCHEMA)
    more = replace(SALES, values=(*VALUES, Value("most", "max", "product")))
    with pytest.raises(SinkRefused, match="sales_second has no column most"):
        _sink(database_url, more).prepare(SCHEMA)
    with pytest.raises(SinkRefused, match="does not yield region; select it"):
        _sink(database_url).prepare(pa.schema([SCHEMA.field("at")]))
    long = replace(SALES, table="t", values=(Value("m" * 60, "avg", "amount"),))
    with pytest.raises(SinkRefused, match="is not a PostgreSQL name"):
        _sink(database_url, long).prepare(SCHEMA)


# -- the HTTP route --------------------------------------------------------------------------------


async def _asked(reader: Any, path: str, access: Access = OPEN, **more: Any) -> httpx.Response:
    served = guarded(aggregation_routes({"sales": reader}), access, {HTTPException: http_error})
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.get(f"/v1/aggregations/{path}", **more)


@pytest.fixture
def filled(database_url: str, tmp_path: Path) -> None:
    sink, march = _sink(database_url), datetime(2026, 3, 1, 11, 30, tzinfo=UTC)
    sink.claim(1, 0, GROUP, soon())
    rows = [
        _row(march, "north", "1.10"),
        _row(march, "south", "2.20"),
        _row(march + timedelta(hours=1), "north", "3.30"),
        _row(march + timedelta(days=60), "north", None),
    ]
    _publish(sink, tmp_path, 1, rows)
    sink.close()


@pytest.mark.usefixtures("filled")
async def test_request_gets_the_rows_of_its_period_in_order(reader: AggregationReader) -> None:
    answer = await _asked(
        reader, "sales?per=hour&from=2026-03-01&to=2026-03-01T12:30:00Z&region=north"
    )
    assert answer.status_code == 200
    body = answer.json()
    assert {key: body[key] for key in body if key != "rows"} == {
        "aggregation": "sales",
        "per": "hour",
        "time_zone": "Europe/Berlin",
        "more": False,
    }
    assert body["rows"] == [
        {
            "start": f"2026-03-01T{hour}:00:00+01:00",
            "region": "north",
            "product": 7,
            "total": total,
            "n": 1,
            "known": 1,
            "lowest": total,
            "highest": total,
            "mean": total,
        }
        for hour, total in ((12, 1.1), (13, 3.3))
    ]


@pytest.mark.usefixtures("filled")
async def test_request_combines_the_keys_that_it_does_not_name(reader: AggregationReader) -> None:
    by_none = (await _asked(reader, "sales?per=month&by=&order=desc")).json()["rows"]
    assert [(row["start"], row["total"], row["n"]) for row in by_none] == [
        ("2026-04-01T00:00:00+02:00", None, 1),
        ("2026-03-01T00:00:00+01:00", 6.6, 3),
    ]
    assert by_none[1]["mean"] == 2.2
    assert "region" not in by_none[0]
    by_region = (await _asked(reader, "sales?per=month&by=region&limit=2")).json()
    assert by_region["more"]
    assert [(row["region"], row["total"]) for row in by_region["rows"]] == [
        ("north", 4.4),
        ("south", 2.2),
    ]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("per=quarter", "per is 'quarter', and not one of second, minute"),
        ("from=yesterday", "from is 'yesterday', and not a time; write 2026-03-01T00:00:00Z"),
        ("to=2026-03-01T00:00:00+01:00", "and + as %2B"),
        ("region=north&region=south", "region is given twice"),
        ("amount=1", "unknown parameter 'amount'; known are per, from, to, by, order, limit"),
        ("by=amount", "by is 'amount', and not one of region, product"),
        ("order=up", "order is 'up', and not one of asc, desc"),
        ("limit=0", "limit must be a number from 1 to 10000"),
        ("limit=٣", "limit must be a number from 1 to 10000"),
        ("product=seven", 'invalid input syntax for type integer: "seven"; write a value'),
        ("region=%00", "a text without NUL"),
    ],
)
async def test_invalid_parameter_is_refused_with_what_to_write(
    reader: AggregationReader, parameters: str, reason: str
) -> None:
    answer = await _asked(reader, f"sales?{parameters}")
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]


async def test_unknown_aggregation_and_missing_tables_are_named(
    reader: AggregationReader,
) -> None:
    unknown = await _asked(reader, "sale")
    assert unknown.status_code == 404
    assert unknown.json()["error"] == "no aggregation is named sale; known: sales"
    missing = await _asked(reader, "sales")
    assert missing.status_code == 503
    assert "the active creates them" in missing.json()["error"]


async def test_request_needs_a_token_for_reading(reader: AggregationReader) -> None:
    access = Access.of({Right.READ: {"r": digest_of("secret")}})
    assert (await _asked(reader, "sales", access)).status_code == 401
    bearer = {"Authorization": "Bearer secret"}
    assert (await _asked(reader, "sales", access, headers=bearer)).status_code == 503


@pytest.mark.usefixtures("filled")
async def test_answer_that_takes_too_long_is_refused_and_the_next_one_is_given(
    database_url: str,
) -> None:
    engine = open_engine(database_url, statement_timeout=0.2)
    with closing(AggregationReader(engine, SALES)) as hasty:
        with open_engine(database_url).begin() as connection:
            connection.execute(text("LOCK sales_second IN ACCESS EXCLUSIVE MODE"))
            late = await _asked(hasty, "sales")
        assert late.status_code == 503
        assert (await _asked(hasty, "sales")).status_code == 200


async def test_requests_that_wait_are_limited(reader: AggregationReader) -> None:
    class Stuck:
        aggregation = SALES

        def __init__(self) -> None:
            self.waiting, self.released = 0, threading.Event()

        def rows(self, question: Question) -> list[str]:
            self.waiting += 1
            self.released.wait(60)
            return []

    stuck = Stuck()
    served = guarded(aggregation_routes({"sales": stuck}), OPEN)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(served), base_url="http://node"
    ) as client:
        first = [
            asyncio.create_task(client.get("/v1/aggregations/sales")) for _ in range(WAITING_MAX)
        ]
        await asyncio.to_thread(wait_until, lambda: stuck.waiting == WAITING_MAX)
        assert (await client.get("/v1/aggregations/sales")).status_code == 503
        stuck.released.set()
        assert {(await one).status_code for one in first} == {200}


def test_value_of_another_type_is_refused(
    database_url: str, reader: AggregationReader, filled: None
) -> None:
    with pytest.raises(NotAValue):
        reader.rows(Question("day", (), {"product": "1e99"}))
