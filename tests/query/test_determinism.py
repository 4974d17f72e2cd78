"""SQL with results that may differ between nodes is refused by name, with advice (RULES.md#i6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ha_engine.errors import ApplicationError, NonDeterministicQuery
from ha_engine.query.application import StreamApplication
from ha_engine.query.check import check_application
from ha_engine.query.determinism import reasons
from ha_engine.query.parent_watchdog import ProcessId
from ha_engine.query.plan import PlannedQuery, plan_query
from ha_engine.query.source_reader import SourceOptions
from tests.query.local_node import LocalNode

pytestmark = pytest.mark.spark

Applications = Callable[[str], StreamApplication]
Planner = Callable[..., PlannedQuery]

SAME_EVERYWHERE = {"e", "pi"}
"""Spark's functions without arguments that have the same result on every node."""


@pytest.fixture
def plan(spark: Any, application: Applications) -> Planner:
    """Plan one query of the given SQL."""

    def planned(sql: str, more: str = "") -> PlannedQuery:
        text = " ".join(sql.split()).replace("'", "''")
        app = application(f"  q:\n    sql: '{text}'\n{more}")
        me = ProcessId.of_this()
        return plan_query(
            spark,
            app,
            app.queries["q"],
            lambda s: SourceOptions("/none", "x", "q", s.name, s.arrow_schema, me, "j:1"),
        )

    return planned


@pytest.mark.parametrize(
    ("sql", "named", "instead"),
    [
        ("SELECT rand() AS r FROM events", "rand()", "_event_id"),
        ("SELECT uuid() AS r FROM events", "uuid()", "_event_id"),
        ("SELECT key FROM events WHERE value > 10 * rand()", "rand()", "_event_id"),
        ("SELECT monotonically_increasing_id() AS r FROM events", "monotonically", "_event_id"),
        ("SELECT current_timestamp() AS t FROM events", "current_timestamp()", "_received_at"),
        ("SELECT unix_timestamp() AS t FROM events", "current_timestamp()", "_received_at"),
        ("SELECT at FROM events WHERE at > now() - INTERVAL 1 HOUR", "now()", "_received_at"),
        ("SELECT key, at > current_date() AS x FROM events", "current_date()", "_received_at"),
        ("SELECT current_user() AS u FROM events", "current_user()", "write the value"),
        ("SELECT current_timezone() AS u FROM events", "current_timezone()", "write the value"),
        ("SELECT at FROM events WHERE at > TIMESTAMP 'today'", "'today'", "_received_at"),
        ("SELECT CAST('now' AS TIMESTAMP) AS t FROM events", "'now'", "_received_at"),
        ("SELECT key FROM events TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", "hash"),
        (
            "SELECT key FROM events WHERE value IN (SELECT CAST(rand() * 9 AS INT) FROM range(3))",
            "rand()",
            "_event_id",
        ),
        (
            "WITH c AS (SELECT key, now() AS n FROM events) SELECT key, n FROM c",
            "now()",
            "_received_at",
        ),
    ],
)
def test_each_nondeterministic_function_is_refused_with_a_replacement(
    plan: Planner, sql: str, named: str, instead: str
) -> None:
    with pytest.raises(NonDeterministicQuery) as caught:
        plan(sql)
    message = str(caught.value)
    assert named in message
    assert instead in message
    assert message.startswith("query q ")
    assert "\n" not in message


def test_query_that_depends_on_its_events_alone_is_accepted(plan: Planner) -> None:
    plan(
        "SELECT window.start AS s, key, collect_list(value) AS l, min_by(text, at) AS m, "
        "max('now') AS word FROM events GROUP BY window(at, '1 hour'), key",
        "    output_mode: update\n",
    )
    plan("SELECT _event_id, _received_at, DATE '2013-01-01' AS d, 'today' AS w FROM events")


def test_deterministic_false_setting_accepts_a_query(plan: Planner) -> None:
    plan("SELECT rand() AS r, now() AS n FROM events", "    deterministic: false\n")


def test_check_knows_every_spark_function_without_arguments(spark: Any) -> None:
    """A new Spark with a new clock or session function breaks this test."""
    judged = {name: list(reasons(frame)) for name, frame in _functions_without_arguments(spark)}
    assert {"now", "rand", "current_user", "localtimestamp", "curdate"} < set(judged)
    passed = {name for name, found in judged.items() if not found}
    assert passed <= SAME_EVERYWHERE


def _functions_without_arguments(spark: Any) -> Iterator[tuple[str, Any]]:
    registry = spark._jsparkSession.sessionState().functionRegistry()
    names = registry.listFunction()
    for index in range(names.size()):
        info = registry.lookupFunction(names.apply(index)).get()
        told = f"{info.getUsage()} {info.getExamples()}"
        if f"{info.getName()}()" not in told:
            continue
        try:
            yield info.getName(), spark.sql(f"SELECT {info.getName()}()")
        except Exception:  # an aggregate, a generator, or a function that needs an argument
            continue


@pytest.mark.parametrize(
    ("sql", "mode", "named"),
    [
        ("SELECT key, count(*) AS n FROM events GROUP BY key", "append", "watermark"),
        ("SELECT key, value FROM events ORDER BY value", "append", "orting"),
        ("SELECT key, count(DISTINCT value) AS n FROM events GROUP BY key", "update", "istinct"),
        ("SELECT nope FROM events", "append", "`nope`"),
        ("SELEC key FROM events", "append", "SELEC"),
        ("SELECT key FROM events JOIN missing USING (key)", "append", "`missing`"),
        ("SELECT key, key FROM events", "append", "twice"),
        (
            "SELECT * FROM (SELECT at, key FROM events) WATERMARK at DELAY OF INTERVAL 1 MINUTE",
            "append",
            "keep one",
        ),
    ],
)
def test_query_that_spark_refuses_is_reported_in_one_sentence(
    plan: Planner, sql: str, mode: str, named: str
) -> None:
    with pytest.raises(ApplicationError) as caught:
        plan(sql, f"    output_mode: {mode}\n")
    message = str(caught.value)
    assert named.lower() in message.lower()
    assert message.startswith("query q")
    assert "\n" not in message
    assert "org.apache" not in message


def test_report_covers_each_query_though_another_query_is_invalid(
    spark: Any, node: LocalNode, application: Applications
) -> None:
    (node.directory / "mine.py").write_text("def run(streams):\n    return streams['events']\n")
    (node.directory / "wrong.py").write_text("def run(streams):\n    return 1 / 0\n")
    report = check_application(
        application(
            "  bad: {sql: SELECT nope FROM events}\n"
            "  wrong: {function: 'wrong:run'}\n"
            "  python: {function: 'mine:run', streams: [events]}\n"
            "  good:\n"
            "    sql: SELECT key, value FROM events\n"
            "    sinks: [{name: t, type: postgres, table: t, mode: upsert, key: [key]}]\n"
            "  keyless:\n"
            "    sql: SELECT key FROM events\n"
            "    sinks: [{name: t, type: postgres, table: t, mode: upsert, key: [id]}]\n"
        ),
        spark,
    )
    assert not report.is_good
    by_name = {query.name: query for query in report.queries}
    assert "nope" in str(by_name["bad"].error)
    assert "ZeroDivisionError" in str(by_name["wrong"].error)
    assert any("Python function" in note for note in by_name["python"].notes)
    assert by_name["good"].error is None
    assert by_name["good"].columns == (("key", "string"), ("value", "int32"))
    assert "exactly once" in by_name["good"].sinks[0].guarantee
    assert "key 'id'" in str(by_name["keyless"].error)
    assert report.to_json()["queries"][0]["name"] == "bad"


TIMERS = """
from pyspark.sql.functions import udf
def run(streams):
    def count(key, frames, state):
        yield from frames
    grouped = streams['events'].groupBy('key')
    return grouped.applyInPandasWithState(
        count, 'key string', 'n int', 'append', 'ProcessingTimeTimeout')
def python(streams):
    return streams['events'].select(udf(lambda v: v, 'int', useArrow=False)('value').alias('v'))
def random(streams):
    made = udf(lambda v: v, 'int', useArrow=False).asNondeterministic()
    return streams['events'].select(made('value').alias('v'))
"""


def test_clock_timers_and_nondeterministic_functions_are_refused(
    spark: Any, node: LocalNode, application: Applications
) -> None:
    (node.directory / "timed.py").write_text(TIMERS)
    report = check_application(
        application(
            "  timers: {function: 'timed:run', streams: [events]}\n"
            "  python: {function: 'timed:python', streams: [events]}\n"
            "  random: {function: 'timed:random', streams: [events]}\n"
        ),
        spark,
    )
    timers, python, random = report.queries
    assert "processing-time timers" in str(timers.error)
    assert python.error is None
    assert "declared not deterministic" in str(random.error)
