"""Patterns as users write them, in YAML and in SQL: what they mean, and why one is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from types import MappingProxyType

import pytest

from ha_engine.errors import ApplicationError
from ha_engine.query.application import QuerySpec, load_application
from ha_engine.query.patterns.automaton import states_of
from ha_engine.query.patterns.explain import drawn, in_words
from ha_engine.query.patterns.expressions import Expressions
from ha_engine.query.patterns.pattern import AfterMatch, One, Pattern, Sequence, Step

STREAMS = """
name: shop
streams:
  orders:
    schema: {at: timestamp not null, id: string not null, type: string, amount: double}
    watermark: {column: at, delay: 10 minutes}
  payments:
    schema: {at: timestamp not null, order_id: string not null, amount: double}
    watermark: {column: at, delay: 1 minute}
  notes:
    schema: {id: string not null, at: timestamp}
queries:
  query:
"""
DURING = "from: orders\nby: [id]\nwithin: 15 minutes\n"
LIMITED = """
from: orders
tables: [payments]
by: {orders: [id], payments: [order_id]}
within: 15 minutes
"""


def query(directory: Path, text: str) -> QuerySpec:
    file = directory / "application.yaml"
    file.write_text(STREAMS + indent(text, "    "))
    return load_application(file).queries["query"]


def pattern(directory: Path, text: str) -> Pattern:
    (found,) = query(directory, "pattern:\n" + indent(text, "  ")).patterns
    return found


def in_sql(directory: Path, clause: str) -> Pattern:
    sql = f"SELECT * FROM orders MATCH_RECOGNIZE (\n{clause}\n)"
    (found,) = query(directory, "sql: |\n" + indent(sql, "  ")).patterns
    return found


def explained(one: Pattern) -> str:
    return "\n".join((*in_words(one), *drawn(one)))


def test_three_lines_say_what_was_ordered_and_not_paid(tmp_path: Path) -> None:
    one = pattern(
        tmp_path, DURING + "sequence: [placed: type = 'placed', not paid: type = 'paid']\n"
    )
    assert explained(one).splitlines() == [
        "events of orders, for each id, within 15 minutes of the first event:",
        "  placed: type = 'placed'",
        "  no paid: type = 'paid'",
        "then each further event may begin a match",
        "start --placed--> 1",
        "1 --paid--> no match",
        "1 --15 minutes after the first event--> match",
    ]
    assert dict(one.columns) == {
        "id": "`id`",
        "match_start": "match_start",
        "match_end": "match_end",
    }


def test_tables_are_named_after_the_steps(tmp_path: Path) -> None:
    one = pattern(tmp_path, LIMITED + "sequence: [high: amount > payments.amount]\n")
    assert explained(one).splitlines() == [
        "events of orders, for each id, within 15 minutes of the first event:",
        "  high: amount > payments.amount",
        "with the newest row of payments up to each event",
        "then each further event may begin a match",
        "start --high--> match",
    ]


def test_steps_of_several_streams_say_their_stream(tmp_path: Path) -> None:
    one = pattern(
        tmp_path,
        """
        from: [orders, payments]
        by: {orders: [id], payments: [order_id]}
        within: 90s
        after_match: {to_last: paid}
        sequence:
          - placed: {from: orders, where: type = 'placed'}
          - paid{2,3}: {from: payments, where: amount > 0}
          - any_of: [{a: {from: orders}}, [{b: {from: payments}}, {c: {from: payments}}]]
          - not more: {from: payments, for: 5 minutes}
        """,
    )
    assert explained(one).splitlines() == [
        "events of orders and payments, for each id, within 90 seconds of the first event:",
        "  placed of orders: type = 'placed'",
        "  paid of payments: amount > 0, 2 to 3 times, as often as possible",
        "  one of:",
        "    - a of orders: any event",
        "    - b of payments: any event",
        "      c of payments: any event",
        "  no more of payments: any event for 5 minutes",
        "then the last paid may begin the next match",
        "start --placed--> 1",
        "1 --paid--> 2",
        "2 --paid--> 3",
        "3 --paid--> 4",
        "3 --a--> 5",
        "3 --b--> 6",
        "4 --a--> 5",
        "4 --b--> 6",
        "5 --more--> no match",
        "5 --5 minutes after the last event--> match",
        "6 --c--> 5",
    ]


@pytest.mark.parametrize(
    ("step", "transitions"),
    [
        ("b", ["1 --b--> 2", "2 --c--> match"]),
        ("b?", ["1 --b--> 2", "1 --c--> match", "2 --c--> match"]),
        ("b??", ["1 --c--> match", "1 --b--> 3", "3 --c--> match"]),
        ("b*", ["1 --b--> 1", "1 --c--> match"]),
        ("b+", ["1 --b--> 2", "2 --b--> 2", "2 --c--> match"]),
        ("b{2}", ["1 --b--> 2", "2 --b--> 3", "3 --c--> match"]),
        ("b{,1}", ["1 --b--> 2", "1 --c--> match", "2 --c--> match"]),
    ],
)
def test_quantifiers_are_those_of_regular_expressions(
    tmp_path: Path, step: str, transitions: list[str]
) -> None:
    text = f"{DURING}sequence:\n  - a:\n  - '{step}': type = 'b'\n  - c:\n"
    assert list(drawn(pattern(tmp_path, text)))[1:] == transitions


def test_all_of_takes_its_parts_in_any_order(tmp_path: Path) -> None:
    one = pattern(tmp_path, DURING + "sequence: [all_of: [{a: }, {b: }, {c: }]]\n")
    assert len(states_of(one.part)[0].takes) == 6


def test_an_aggregate_over_a_table_is_over_the_events_of_all_streams() -> None:
    by = MappingProxyType(dict.fromkeys(("orders", "payments", "limits"), ("id",)))
    part = Sequence((One(Step("ordered", "orders")), One(Step("paid", "payments"))))
    streams = ("orders", "payments")
    two = Pattern(streams, by, part, 60, MappingProxyType({}), tables=("limits",))
    times = dict.fromkeys(by, "at")
    expressions = Expressions(two, {}, frozenset({"at", "id", "amount"}), times)
    expressions.column("max(limits.most)")
    assert expressions.slots["max(limits.most)"].step is None
    with pytest.raises(ApplicationError, match="does not say which step's events it is over"):
        expressions.column("max(amount)")


def test_optional_alternatives_in_a_row_are_awaited_once_each(tmp_path: Path) -> None:
    alternatives = "any_of: [{'b?': }, {'c?': }]"
    text = f"{DURING}sequence: [a: , {', '.join([alternatives] * 30)}, d: ]\n"
    before = states_of(pattern(tmp_path, text).part)[1]
    assert len(before.takes) == 2 * 30 + 1


def test_match_recognize_has_the_defaults_of_the_standard(tmp_path: Path) -> None:
    one = in_sql(
        tmp_path,
        """
        PARTITION BY id
        ORDER BY at
        MEASURES first(down.amount) AS high, FINAL last(up.amount) AS back  -- the last one
        ONE ROW PER MATCH
        PATTERN (begin down{2,}? (up | PERMUTE(a, b))) WITHIN INTERVAL '1' HOUR
        DEFINE down AS amount < prev(amount), up AS amount > prev(amount)
        """,
    )
    assert one.after_match is AfterMatch.PAST_LAST
    assert one.within == 3_600
    assert dict(one.columns) == {
        "id": "`id`",
        "high": "first(down.amount)",
        "back": "last(up.amount)",
    }
    assert explained(one).splitlines()[1:] == [
        "  begin: any event",
        "  the next event is down: amount < prev(amount), 2 times or more, as seldom as possible",
        "  one of:",
        "    - the next event is up: amount > prev(amount)",
        "    - one of:",
        "        - the next event is a: any event",
        "          the next event is b: any event",
        "        - the next event is b: any event",
        "          the next event is a: any event",
        "then an event after the last event of the match may begin the next match",
        "start --begin--> 1",
        "1 --next: down--> 2",
        "2 --next: down--> 3",
        "3 --next: up--> match",
        "3 --next: a--> 5",
        "3 --next: b--> 6",
        "3 --next: down--> 3",
        "5 --next: b--> match",
        "6 --next: a--> match",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from: order\nby: [id]\nwithin: 5m\nsequence: [a: ]", "no stream 'order'; did you mean"),
        ("from: notes\nby: [id]\nwithin: 5m\nsequence: [a: ]", "'notes' has no watermark"),
        ("from: orders\nwithin: 5m\nby: [ids]\nsequence: [a: ]", "ids"),
        ("from: orders\nby: [id]\nsequence: [a: ]", "within"),
        ("from: orders\nby: [id]\nwithin: soon\nsequence: [a: ]", "'soon' is not a time"),
        (DURING + "sequence: [a: {whree: ok}]", "whree"),
        (DURING + "sequence: ['a!': ok]", "is not the name of a step"),
        (DURING + "sequence: [a: , not b: , 'c': {for: 5m}]", "for is only for an absent event"),
        (DURING + "sequence: [not a: , b: ]", "begins with an absent event"),
        (DURING + "sequence: ['a?': ]", "matches without any event"),
        (DURING + "sequence: [a: , a: type = 'b']", "has two conditions"),
        (DURING + "sequence: [type: ]", "is the name of a column"),
        (DURING + "contiguity: strict\nsequence: [a: , not b: , c: ]", "says nothing"),
        (DURING + "sequence: [a: , not b: {for: 5m}, c: ]", "only at the end"),
        (DURING + "sequence: ['a{1,900}': , 'b{1,900}': ]", "more than 1000 states"),
        (DURING + "after_match: {to_last: c}\nsequence: [a: ]", "there is no step 'c'"),
        ("from: [orders, payments]\nby: [id]\nwithin: 5m\nsequence: [a: ]", "by"),
        (DURING + "tables: [payment]\nsequence: [a: ]", "tables: there is no stream 'payment'"),
        (DURING + "tables: [orders]\nsequence: [a: ]", "tables names the stream 'orders' twice"),
        (DURING + "tables: [notes]\nsequence: [a: ]", "tables: stream 'notes' has no watermark"),
        (LIMITED + "sequence: [payments: ]", "is the name of a column, a table or a key word"),
        (LIMITED + "sequence: [order_id: ]", "is the name of a column, a table or a key word"),
        (LIMITED + "sequence: [a: {from: payments}]", "the pattern has no stream 'payments'"),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ApplicationError) as refused:
        pattern(tmp_path, text)
    assert "application.yaml: queries.query.pattern" in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ORDER BY at", "ORDER BY amount", "the column of the watermark, at"),
        ("PARTITION BY id", "PARTITION BY nothing", "no column of orders"),
        ("WITHIN INTERVAL 5 MINUTES", "", "no WITHIN"),
        ("INTERVAL 5 MINUTES", "INTERVAL 5 BEATS", "is no time"),
        ("ONE ROW", "ALL ROWS", "ALL ROWS PER MATCH is not supported"),
        ("(a b+)", "(^ a b+)", "anchors and exclusions are not supported"),
        ("(a b+)", "(a+ c)", "DEFINE b is not in PATTERN"),
        ("AS amount > 1", "AS next(amount) > 1", "next is not supported"),
        ("AS worth", "", "needs AS and a name"),
    ],
)
def test_a_wrong_clause_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    clause = """
        PARTITION BY id
        ORDER BY at
        MEASURES sum(amount) AS worth
        ONE ROW PER MATCH
        PATTERN (a b+) WITHIN INTERVAL 5 MINUTES
        DEFINE b AS amount > 1
    """
    assert in_sql(tmp_path, clause)
    with pytest.raises(ApplicationError) as refused:
        in_sql(tmp_path, clause.replace(old, new))
    assert reason in str(refused.value)
