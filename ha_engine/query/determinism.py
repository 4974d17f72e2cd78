"""Find what would make a query's result differ between nodes, before the query runs (RULES.md#i6).

This module refuses expressions that Spark calls not deterministic, and plan nodes such as samples.
This module also refuses expressions that read a clock, the user or the session, which Spark calls
deterministic. The code of a Python function cannot be checked, so the nodes compare the digests of
batches instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ha_engine.errors import ApplicationError, NonDeterministicQuery
from ha_engine.query.application import OutputMode
from ha_engine.query.failure import one_line
from ha_engine.query.sql_words import without_comments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLOCK = "use an event's own time, or _received_at from system_columns"
_RANDOM = "use _event_id from system_columns, or a hash of it"
_SESSION = "write the value into the query"

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "CurrentTimestamp": _CLOCK,
        "CurrentBatchTimestamp": _CLOCK,
        "Now": _CLOCK,
        "CurrentDate": _CLOCK,
        "CurDateExpressionBuilder": _CLOCK,
        "CurrentTime": _CLOCK,
        "LocalTimestamp": _CLOCK,
        "CurrentUser": _SESSION,
        "CurrentTimeZone": _SESSION,
        "CurrentDatabase": _SESSION,
        "CurrentCatalog": _SESSION,
        "CurrentPath": _SESSION,
        "SparkVersion": _SESSION,
    }
)
"""Expressions that Spark calls deterministic, with what to use instead."""

PYTHON_CLASSES = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "PythonFuncExpression"})
_SAMPLE_ADVICE = "keep rows by a hash, such as WHERE pmod(hash(_event_id), 100) < 10"
_MOVING_DATES = frozenset({"now", "today", "yesterday", "tomorrow"})
_MOVING_LITERAL = re.compile(
    r"\b(?:date|timestamp(?:_ntz|_ltz)?)\s*'\s*(now|today|yesterday|tomorrow)\b", re.IGNORECASE
)


def refuse_non_deterministic(name: str, frame: DataFrame) -> None:
    """Raise NonDeterministicQuery for the first part that is not deterministic.

    The error says what to use instead.
    """
    for what, instead in reasons(frame):
        raise NonDeterministicQuery(
            f"query {name} uses {what}, which differs between nodes; {instead}"
        )


def refuse_moving_literals(name: str, sql: str) -> None:
    """Refuse literals such as ``DATE 'today'`` by the SQL text, since the plan has only a constant.

    Raises NonDeterministicQuery.
    """
    if found := _MOVING_LITERAL.search(without_comments(sql)):
        raise NonDeterministicQuery(
            f"query {name} uses {found[0]}', which differs between nodes; {_CLOCK}"
        )


def refuse_unsupported(name: str, frame: DataFrame, mode: OutputMode) -> None:
    """Check with Spark whether the plan supports the output mode.

    Raises ApplicationError with Spark's reason.
    """
    jvm = frame.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    declared = getattr(modes, mode.value.capitalize())()
    try:
        checker.checkForStreaming(analyzed(frame), declared)
    except Exception as error:
        raise ApplicationError(
            f"query {name} cannot run in output_mode {mode.value}: {one_line(error)}"
        ) from error


def analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def uses_python(frame: DataFrame) -> bool:
    """Whether the plan calls a Python function."""
    return any(
        _class(expression) in PYTHON_CLASSES
        for node in plan_nodes(analyzed(frame))
        for expression in _expressions(node)
    ) or any(
        "Python" in _class(node) or "Pandas" in _class(node) for node in plan_nodes(analyzed(frame))
    )


def reasons(frame: DataFrame) -> Iterator[tuple[str, str]]:
    """Yield each part of the analyzed plan that is not deterministic, and what to use instead."""
    for node in plan_nodes(analyzed(frame)):
        yield from _reasons_of_node(node)
        for expression in _expressions(node):
            yield from _reasons_of_expression(expression)


def _reasons_of_node(node: Any) -> Iterator[tuple[str, str]]:
    match _class(node):
        case "Sample":
            yield "TABLESAMPLE or sample()", _SAMPLE_ADVICE
        case name if _waits_for_the_clock(name, node):
            yield f"processing-time timers ({name})", "use event-time timers"


def _waits_for_the_clock(name: str, node: Any) -> bool:
    if "WithState" not in name:
        return False
    settings = [getattr(node, field)() for field in ("timeout", "timeMode") if _has(node, field)]
    return any("ProcessingTime" in str(setting.toString()) for setting in settings)


def _reasons_of_expression(expression: Any) -> Iterator[tuple[str, str]]:
    name = _class(expression)
    if name in CLASSES:
        yield f"{expression.prettyName()}()", CLASSES[name]
    elif name in PYTHON_CLASSES and not expression.deterministic():
        yield f"the Python function {expression.name()}, declared not deterministic", _RANDOM
    elif _is_moving_cast(name, expression):
        yield expression.sql(), _CLOCK
    elif (
        not expression.deterministic()
        and all(child.deterministic() for child in _sequence(expression.children()))
        and not _is_subquery(expression)
    ):
        yield f"{expression.prettyName()}()", _RANDOM


def _is_moving_cast(name: str, expression: Any) -> bool:
    """Whether an expression is like CAST('now' AS TIMESTAMP), which gives the current time."""
    if name != "Cast" or _class(expression.child()) != "Literal":
        return False
    words = str(expression.child().toString()).strip().lower().split()
    target = str(expression.dataType().simpleString())
    return bool(words) and words[0] in _MOVING_DATES and target.startswith(("date", "timestamp"))


# -- walking the plan ------------------------------------------------------------------------------


def plan_nodes(plan: Any) -> Iterator[Any]:
    """Every node of a logical plan, those of subqueries included."""
    yield plan
    for inner in (*_sequence(plan.subqueries()), *_sequence(plan.children())):
        yield from plan_nodes(inner)


def _expressions(node: Any) -> Iterator[Any]:
    for root in _sequence(node.expressions()):
        yield from _tree(root)


def _tree(expression: Any) -> Iterator[Any]:
    """Yield the parts of an expression, leaves first, so that an error names the innermost part."""
    for child in _sequence(expression.children()):
        yield from _tree(child)
    yield expression


def _is_subquery(expression: Any) -> bool:
    return _has(expression, "plan")


def _sequence(items: Any) -> list[Any]:
    return [items.apply(index) for index in range(items.size())]


def _class(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _has(thing: Any, method: str) -> bool:
    return any(found.getName() == method for found in thing.getClass().getMethods())
