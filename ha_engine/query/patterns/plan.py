"""Turn a pattern into a Spark data frame, with the classes of ``haengine.patterns`` in the JVM.

Spark analyzes the expressions of a pattern over the columns of a stream and the slots. The classes
in the JVM evaluate them on the events of each key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ha_engine.errors import ApplicationError
from ha_engine.query.failure import one_line
from ha_engine.query.patterns.automaton import State, states_of, steps_before
from ha_engine.query.patterns.expressions import TYPE, Expressions, Slot
from ha_engine.query.patterns.pattern import Pattern, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_ID = "_event_id"
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class PatternFrame:
    """The output of a pattern, and ``checked``, frames with all expressions of the pattern."""

    frame: DataFrame
    checked: tuple[DataFrame, ...]


def pattern_frame(
    spark: SparkSession,
    pattern: Pattern,
    streams: Mapping[str, DataFrame],
    times: Mapping[str, str],
) -> PatternFrame:
    """Plan ``pattern`` over the frames of its streams and tables, which have ``_event_id``.

    The frames of tables have no watermark. ``times`` has the column of the event time of each
    stream and table. Raises ApplicationError.
    """
    return Planner(spark, pattern, streams, times).planned()


class Planner:
    """Plans one pattern. ``conditions``, ``columns``, ``slots`` and ``history`` are those of the
    pattern, as Spark SQL."""

    def __init__(
        self,
        spark: SparkSession,
        pattern: Pattern,
        streams: Mapping[str, DataFrame],
        times: Mapping[str, str],
    ) -> None:
        self._spark, self._pattern, self._times = spark, pattern, times
        self._inputs = {name: streams[name] for name in pattern.inputs}
        self._checked: list[DataFrame] = []
        self._states = states_of(pattern.part)
        columns = frozenset(
            one.lower() for name in pattern.streams for one in self._inputs[name].columns
        )
        expressions = Expressions(pattern, steps_before(self._states), columns, times)
        self.conditions = {
            step: _named(step.name, expressions.condition, step) for step in pattern.steps
        }
        self.columns = {
            name: _named(name, expressions.column, text) for name, text in pattern.columns.items()
        }
        self.slots, self._tables = expressions.finished(), expressions.tables()
        self.history = (*expressions.history.values(), *self._tables)
        if unused := set(pattern.tables) - {slot.name for slot in self._tables}:
            raise ApplicationError(
                f"no expression names a column of the table {min(unused)}; remove the table"
            )

    def planned(self) -> PatternFrame:
        with _errors_of("the pattern"):
            return PatternFrame(self._output(self.plan()), tuple(self._checked))

    def plan(self) -> Any:
        """The ``PatternPlan`` of the JVM. Raises ApplicationError."""
        slots, history = self.slots, self.history
        types = self._types()
        helpers = {
            name: frame.selectExpr("*", *(_null(slot, types) for slot in (*slots, *history)))
            for name, frame in self._inputs.items()
        }
        plan = self._spark._jvm.haengine.patterns.PatternPlan(
            json.dumps(self._program()), self._initial(slots, types), self._initial(history, types)
        )
        for name, helper in helpers.items():
            plan.stream(self._inputs[name]._jdf, helper._jdf)
        for step, condition in self.conditions.items():
            helper = helpers[step.stream]
            accepts = self._condition(step, helper, condition)
            updates = [_update(slot, step, types) for slot in slots]
            after = self._selected(step.name, helper, updates)
            with _errors_of(step.name):
                plan.step(accepts._jdf, after._jdf)
        for name, helper in helpers.items():
            updates = [self._history_update(slot, name, types) for slot in history]
            plan.history(self._selected(name, helper, updates)._jdf)
        return plan

    def _program(self) -> dict[str, Any]:
        """The streams, steps, states and limits of the pattern, for the JVM."""
        pattern = self._pattern
        steps = pattern.steps
        numbers = {step: number for number, step in enumerate(steps)}
        streams = list(pattern.inputs)
        return {
            "streams": [
                {
                    "time": self._times[name],
                    "by": list(pattern.by[name]),
                    "table": name in pattern.tables,
                }
                for name in streams
            ],
            "lookups": len(self._tables),
            "steps": [{"name": s.name, "stream": streams.index(s.stream)} for s in steps],
            "states": [_state(state, numbers) for state in self._states],
            "within": _micros(pattern.within),
            "afterMatch": pattern.after_match.name,
            "afterStep": next(
                (n for n, step in enumerate(steps) if step.name == pattern.after_step), -1
            ),
            "keyBytesMax": pattern.key_bytes_max,
        }

    def _types(self) -> dict[str, str]:
        """The SQL types of the slots by name. Those of tables are known first."""
        types = {slot.name: self._type(slot, self._inputs[slot.name]) for slot in self._tables}
        rows = [_null(slot, types) for slot in self._tables]
        frames = {name: frame.selectExpr("*", *rows) for name, frame in self._inputs.items()}
        streams = {step.name: step.stream for step in self._pattern.steps}
        for slot in (*self.slots, *self.history):
            if slot.name not in types:
                stream = streams.get(slot.step or "", self._pattern.streams[0])
                types[slot.name] = self._type(slot, frames[stream])
        return types

    def _type(self, slot: Slot, frame: DataFrame) -> str:
        selected = self._selected(slot.name, frame, [slot.type_of], checked=False)
        return str(selected.schema[0].dataType.simpleString())

    def _history_update(self, slot: Slot, stream: str, types: Mapping[str, str]) -> str:
        """The value of a slot of the history after an event of ``stream``."""
        changes = slot.step == stream or (slot.step is None and stream in self._pattern.streams)
        return slot.updated(types[slot.name]) if changes else _quoted(slot.name)

    def _initial(self, slots: tuple[Slot, ...], types: Mapping[str, str]) -> Any:
        """A frame with the values of slots before any event."""
        texts = [
            f"{slot.initial.replace(TYPE, types[slot.name])} AS {_quoted(slot.name)}"
            for slot in slots
        ]
        return self._spark.range(1).selectExpr(*texts)._jdf

    def _condition(self, step: Step, helper: DataFrame, condition: str) -> DataFrame:
        frame = self._selected(step.name, helper, [condition])
        kind = frame.schema[0].dataType.simpleString()
        if kind != "boolean":
            raise ApplicationError(f"{step.name}: {step.condition!r} is no condition, but a {kind}")
        return frame

    def _selected(
        self, where: str, frame: DataFrame, texts: list[str], *, checked: bool = True
    ) -> DataFrame:
        with _errors_of(where):
            selected = frame.selectExpr(*texts)
        if checked:
            self._checked.append(selected)
        return selected

    def _output(self, plan: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        matches = DataFrame(plan.planned(), self._spark)
        # A comment ends with its line.
        texts = {name: f"{text}\n AS {_quoted(name)}" for name, text in self.columns.items()}
        for name, text in texts.items():
            self._selected(name, matches, [text])
        return matches.selectExpr(*texts.values())


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Raise ApplicationError in place of an error of Spark."""
    try:
        yield
    except ApplicationError:
        raise
    except Exception as error:
        raise ApplicationError(f"{where}: {one_line(error)}") from error


def _named(name: str, rewrite: Any, argument: Any) -> str:
    try:
        return str(rewrite(argument))
    except ApplicationError as error:
        raise ApplicationError(f"{name}: {error}") from None


def _state(state: State, numbers: Mapping[Step, int]) -> dict[str, Any]:
    return {
        "takes": [
            {
                "step": numbers[take.step],
                "target": take.target,
                "adjacent": take.adjacent,
                "absent": [numbers[step] for step in take.absent],
            }
            for take in state.takes
        ],
        "ends": state.end is not None,
        "endAbsent": [numbers[step] for step in state.end.absent] if state.end else [],
        "endAfter": _micros(state.end.seconds) if state.end and state.end.seconds else None,
    }


def _micros(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _null(slot: Slot, types: Mapping[str, str]) -> str:
    return f"CAST(NULL AS {types[slot.name]}) AS {_quoted(slot.name)}"


def _update(slot: Slot, step: Step, types: Mapping[str, str]) -> str:
    """The value of ``slot`` after an event of ``step``."""
    if slot.step not in (None, step.name):
        return _quoted(slot.name)
    return slot.updated(types[slot.name])


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
