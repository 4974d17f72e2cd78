"""Rewrite the expressions of a pattern so that Spark can evaluate them.

An expression may name columns of the current event, columns of a step's last event such as
``paid.amount``, columns of a table's row such as ``limits.most``, and aggregates over the events of
a step such as ``sum(paid.amount)``, or over all events of the match such as ``count(*)``. The
values of earlier events are in *slots*, which are columns of the memory of a match. A slot has an
expression for its value after another event. So all expressions are Spark SQL over the columns of
the current event and the slots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ha_engine.errors import ApplicationError
from ha_engine.query.patterns.pattern import Pattern, Step, taken_steps_of
from ha_engine.query.sql_words import closing, listed, masked

OFFSET_MAX = 16
TYPE = "<type>"
_CALL = re.compile(
    r"(?<![\w.`])(count|sum|min|max|avg|mean|first|last|collect_list|prev)\s*\(", re.IGNORECASE
)
_COLUMN = r"(?:`(?:[^`]|``)+`|[A-Za-z_]\w*)"


@dataclass(frozen=True, slots=True)
class Slot:
    """A value that a match keeps of its events.

    ``update`` is the value after an event of ``step``, or after any event of the match if ``step``
    is None. ``type_of`` is an expression over the columns of an event that has the slot's type, and
    may be an aggregate. In ``update`` and ``initial``, TYPE stands for that type.
    """

    name: str
    step: str | None
    update: str
    type_of: str
    initial: str = f"CAST(NULL AS {TYPE})"

    def updated(self, kind: str) -> str:
        """The value after another event, in a slot of the SQL type ``kind``."""
        return self.update.replace(TYPE, kind)


@dataclass(slots=True)
class Expressions:
    """Rewrites the expressions of one pattern, and collects the slots that they need.

    ``history`` are the slots of the events before the current one, matched or not. ``before`` has
    the steps whose events may come before an event of each step, and ``stream_columns`` the columns
    of the streams in lower case. ``times`` has the column of the time of each stream and table.
    """

    pattern: Pattern
    before: Mapping[str, set[str]]
    stream_columns: frozenset[str]
    times: Mapping[str, str]
    slots: dict[str, Slot] = field(default_factory=dict)
    history: dict[str, Slot] = field(default_factory=dict)
    _spelled: dict[str, str] = field(default_factory=dict)
    _columns: dict[str, dict[str, str]] = field(default_factory=dict)
    _table_columns: dict[str, dict[str, str]] = field(default_factory=dict)

    def condition(self, step: Step) -> str:
        """The condition of ``step``, or ``true``. Raises ApplicationError."""
        return "true" if step.condition is None else self._rewritten(step.condition, step.name)

    def column(self, text: str) -> str:
        """An expression of the output. Raises ApplicationError."""
        return self._rewritten(text, None)

    def finished(self) -> tuple[Slot, ...]:
        """All slots, with those of the last events of steps."""
        lasts = (
            _last_event(step, tuple(columns.values())) for step, columns in self._columns.items()
        )
        return (*lasts, *self.slots.values())

    def tables(self) -> tuple[Slot, ...]:
        """A slot for each table that an expression names, with the columns of its newest row."""
        return tuple(
            _newest_row(table, self.times[table], tuple(columns.values()))
            for table, columns in self._table_columns.items()
        )

    # -- one expression ----------------------------------------------------------------------------

    def _rewritten(self, text: str, current: str | None) -> str:
        """Replace the aggregates of ``text``. ``current`` is the step that the event is tried for,
        whose columns are those of the event."""
        _require_no_lambda_named(text, [*self._names(), *self.pattern.tables])
        written, at = "", 0
        for call, arguments in _calls(text):
            written += self._with_events(text[at : call.start()], current)
            written += self._call(call[1].lower(), arguments, current)
            at = call.end() + len(arguments) + 1
        return written + self._with_events(text[at:], current)

    def _with_events(self, text: str, current: str | None) -> str:
        """Note the columns of steps and tables in ``text``, and remove the name of the current
        step. The output has the row of a table as of the match's last event."""
        text = self._with_tables(text, of_match=current is None)
        found = self._references_to_steps(text)
        for reference in reversed(found):
            step, column = self._declared(reference["step"]), reference["column"]
            if step == current:
                text = text[: reference.start()] + column + text[reference.end() :]
            else:
                self._require_before(step, current)
                column = column.strip("`")
                self._columns.setdefault(step, {}).setdefault(column.lower(), column)
                text = text[: reference.start("named")] + step + text[reference.end("named") :]
        return text

    def _with_tables(self, text: str, *, of_match: bool) -> str:
        """Note the columns of tables in ``text``. If it is ``of_match``, let it have the row in a
        slot of the match."""
        references = list(_references(text, self.pattern.tables))
        _require_columns_of(self.pattern.tables, text, references)
        for reference in reversed(references):
            named, column = reference["step"], reference["column"].strip("`")
            table = next(one for one in self.pattern.tables if one.lower() == named.lower())
            self._table_columns.setdefault(table, {}).setdefault(column.lower(), column)
            if of_match:
                kept = Slot(f"{table} of the match", None, f"`{table}`", f"`{table}`")
                place = self._slot(kept)
                text = text[: reference.start("named")] + place + text[reference.end("named") :]
        return text

    def _require_before(self, step: str | None, current: str | None) -> None:
        """Raise ApplicationError if no event of ``step`` comes before those of ``current``."""
        if step in (None, current) or current is None:
            return
        if step in self.before.get(current, {step}):
            return  # or no way reaches the current step, which is after a lazy end
        raise ApplicationError(
            f"no {step} comes before {current}, so its values are null there; refer to an earlier "
            "step"
        )

    def _call(self, function: str, arguments: str, current: str | None) -> str:
        """The slot that has the value of an aggregate."""
        if _CALL.search(masked(arguments)):
            raise ApplicationError(
                f"{function}({arguments}) has an aggregate within an aggregate; write them apart"
            )
        if re.match(r"\s*DISTINCT\b", arguments, re.IGNORECASE):
            raise ApplicationError(
                f"{function}({arguments}): a pattern knows no DISTINCT; collect the values with "
                "collect_list, and use array_distinct"
            )
        value, offset = _split(function, arguments)
        self._with_tables(value, of_match=False)
        if function == "prev":
            self._require_plain(value, current)
            return self._previous(_without(value, self._names()), 1 if offset is None else offset)
        step, value = self._step_of(function, value)
        self._require_before(step, current)
        if step is not None and step == current and step in self._absent():
            raise ApplicationError(
                f"{function}({arguments}) is over events of {step}, of which a match has none; "
                "count another step"
            )
        match function:
            case "count":
                return self._count(step, value)
            case "sum":
                return self._sum(step, value)
            case "avg" | "mean":
                double = f"CAST({value} AS DOUBLE)"
                return f"({self._sum(step, double)} / nullif({self._count(step, value)}, 0))"
            case "min" | "max":
                name = self._named(function, step, value)
                one = "least" if function == "min" else "greatest"
                return self._slot(Slot(name, step, f"{one}(`{_quoted(name)}`, {value})", value))
            case "collect_list":
                return self._list(step, value)
            case "first":
                return self._first(step, value, offset or 0)
            case _:
                return self._last(step, value, offset or 0)

    def _references_to_steps(self, text: str) -> list[re.Match[str]]:
        """Raise ApplicationError if a table is taken for a column of a step."""
        found = list(_references(text, self._names()))
        for reference in found:
            column = reference["column"].strip("`").lower()
            if column in map(str.lower, self.pattern.tables):
                raise ApplicationError(
                    f"{reference[0]}: {column} is a table and belongs to no step; write "
                    f"{column}.COLUMN"
                )
        return found

    def _names(self) -> list[str]:
        return [step.name for step in self.pattern.steps]

    def _absent(self) -> set[str]:
        """The steps whose events are only absent."""
        taken = {step.name for step in taken_steps_of(self.pattern.part)}
        return {name for name in self._names() if name not in taken}

    def _declared(self, name: str) -> str:
        """The name of a step as the pattern writes it. SQL ignores the case of names."""
        return next(one for one in self._names() if one.lower() == name.lower())

    def _require_plain(self, value: str, current: str | None) -> None:
        """Raise ApplicationError if ``prev`` is not about the event before the current one."""
        if current is None:
            raise ApplicationError(
                f"prev({value}) is only for conditions; use last(STEP.column, 1)"
            )
        steps = {self._declared(one["step"]) for one in self._references_to_steps(value)}
        if steps - {current}:
            raise ApplicationError(
                f"prev({value}) names a step, but prev is about the event before this one, "
                "whatever it is; use last(STEP.column, 1)"
            )

    def _step_of(self, function: str, value: str) -> tuple[str | None, str]:
        """The step whose events an aggregate counts, and its value for one event."""
        names = self._names()
        if value.strip().lower() in map(str.lower, names):
            return self._declared(value.strip()), "*"
        references = self._references_to_steps(value)
        steps = {self._declared(one["step"]) for one in references}
        if len(steps) > 1:
            raise ApplicationError(
                f"{function}({value}) is over the events of {' and '.join(sorted(steps))}; an "
                "aggregate is over the events of one step, or of all"
            )
        if steps and (bare := self._bare_columns(value, references)):
            raise ApplicationError(
                f"{function}({value}) mixes {bare[0]} with columns of a step; write "
                f"{next(iter(steps))}.{bare[0]}, or write two aggregates"
            )
        if not steps and self._bare_columns(value, []) and len(self.pattern.streams) > 1:
            raise ApplicationError(
                f"{function}({value}) does not say which step's events it is over; write it such "
                f"as {function}({names[0]}.column)"
            )
        return next(iter(steps), None), _without(value, names)

    def _bare_columns(self, value: str, references: list[re.Match[str]]) -> list[str]:
        """The columns in ``value`` that are not those of a step or a table."""
        code = masked(value)
        references = [*references, *_references(value, self.pattern.tables)]
        for one in sorted(references, key=lambda one: one.start(), reverse=True):
            code = code[: one.start()] + code[one.end() :]
        words = re.findall(r"(?<![\w.])([A-Za-z_]\w*)(?!\w*\s*[(.])", code.replace("`", " "))
        return [word for word in words if word.lower() in self.stream_columns]

    # -- slots -------------------------------------------------------------------------------------

    def _named(self, *parts: Any) -> str:
        """A name for a slot. Names that differ only in case get numbers, since SQL ignores the case
        of columns."""
        name = found = _name(*parts)
        number = 1
        while self._spelled.setdefault(found.lower(), name) != name:
            number += 1
            found = f"{name} #{number}"
        return found

    def _slot(self, slot: Slot) -> str:
        """Note a slot, and return its column."""
        self.slots.setdefault(slot.name, slot)
        return f"`{_quoted(slot.name)}`"

    def _count(self, step: str | None, value: str) -> str:
        name = self._named("count", step, value)
        one = "1L" if value.strip() == "*" else f"if(({value}) IS NULL, 0L, 1L)"
        return self._slot(Slot(name, step, f"`{_quoted(name)}` + {one}", "0L", "0L"))

    def _sum(self, step: str | None, value: str) -> str:
        name = self._named("sum", step, value)
        own = f"`{_quoted(name)}`"
        update = (
            f"CASE WHEN ({value}) IS NULL THEN {own} WHEN {own} IS NULL THEN "
            f"CAST(({value}) AS {TYPE}) ELSE CAST({own} + ({value}) AS {TYPE}) END"
        )
        return self._slot(Slot(name, step, update, f"sum({value})"))

    def _list(self, step: str | None, value: str) -> str:
        name = self._named("collect_list", step, value)
        own = f"`{_quoted(name)}`"
        update = f"if(({value}) IS NULL, {own}, concat({own}, array({value})))"
        return self._slot(Slot(name, step, update, f"array({value})", f"CAST(array() AS {TYPE})"))

    def _first(self, step: str | None, value: str, offset: int) -> str:
        count = self._count(step, "*")
        name = self._named("first", step, value, offset)
        update = f"if({count} = {offset}, {value}, `{_quoted(name)}`)"
        return self._slot(Slot(name, step, update, value))

    def _last(self, step: str | None, value: str, offset: int) -> str:
        name = self._named("last", step, value, offset)
        update = value if offset == 0 else self._last(step, value, offset - 1)
        return self._slot(Slot(name, step, update, value))

    def _previous(self, value: str, offset: int) -> str:
        if len(self.pattern.streams) > 1:
            raise ApplicationError(
                f"prev({value}) needs a pattern over one stream; use last(STEP.column)"
            )
        name = self._named("prev", None, value, offset)
        update = value if offset == 1 else self._previous(value, offset - 1)
        self.history.setdefault(name, Slot(name, None, update, value))
        return f"`{_quoted(name)}`"


def _last_event(step: str, columns: tuple[str, ...]) -> Slot:
    """The slot with some columns of the last event of ``step``, as a struct."""
    fields = ", ".join(f"'{one}', `{_quoted(one)}`".replace("\\", "\\\\") for one in columns)
    update = f"named_struct({fields})"
    return Slot(step, step, update, update)


def _newest_row(table: str, time: str, columns: tuple[str, ...]) -> Slot:
    """The slot with the newest row of a table. A late row does not replace a newer one."""
    row = _last_event(table, (time, *(one for one in columns if one.lower() != time.lower())))
    update = f"if(`{table}`.`{_quoted(time)}` > `{_quoted(time)}`, `{table}`, {row.update})"
    return Slot(table, table, update, row.update)


def _name(function: str, step: str | None, value: str, offset: int | None = None) -> str:
    over = value if step is None else (step if value.strip() == "*" else f"{step}: {value}")
    return f"{function}({over}{'' if offset is None else f', {offset}'})"


def _quoted(name: str) -> str:
    return name.replace("`", "``")


# -- the text of an expression ---------------------------------------------------------------------


def _calls(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The outermost aggregates of ``text``, each with the text of its arguments."""
    code, at = masked(text), 0
    while call := _CALL.search(code, at):
        end = closing(code, call.end())
        if end is None:
            raise ApplicationError(f"a parenthesis of {text!r} is not closed")
        yield call, text[call.end() : end]
        at = end + 1


def _split(function: str, arguments: str) -> tuple[str, int | None]:
    """The value and the offset in the arguments of an aggregate."""
    match listed(arguments):
        case [value]:
            return value, None
        case [value, offset] if function in ("first", "last", "prev"):
            return value, _offset(function, offset)
        case []:
            raise ApplicationError(f"{function}() needs a step or an expression")
        case _:
            raise ApplicationError(f"{function}({arguments}) has too many arguments")


def _offset(function: str, text: str) -> int:
    least = 1 if function == "prev" else 0
    if not text.isdecimal() or not least <= int(text) <= OFFSET_MAX:
        raise ApplicationError(
            f"{function}: {text!r} is not a number of events from {least} to {OFFSET_MAX}"
        )
    return int(text)


def _require_no_lambda_named(text: str, names: list[str]) -> None:
    """Raise ApplicationError for a lambda whose variable has the name of a step."""
    for variables in re.findall(r"(\w+|\([\w\s,]+\))\s*->", masked(text)):
        for name in re.findall(r"\w+", variables):
            if name.lower() in map(str.lower, names):
                raise ApplicationError(
                    f"the variable {name!r} of a lambda is the name of a step or a table; rename "
                    "the variable"
                )


def _references(text: str, names: Sequence[str]) -> Iterator[re.Match[str]]:
    """The places of ``text`` that name a column of a step, or of a table."""
    if not names:
        return
    steps = "|".join(map(re.escape, names))
    reference = re.compile(
        rf"(?<![\w.`])(?P<named>(?P<quote>`?)(?P<step>{steps})(?P=quote))\s*\.\s*"
        rf"(?P<column>{_COLUMN})",
        re.IGNORECASE,
    )
    for found in reference.finditer(masked(text)):
        whole = reference.match(text, found.start())
        if whole is None:
            raise ApplicationError(f"{text!r} has a comment within a name; remove the comment")
        yield whole


def _require_columns_of(
    tables: Sequence[str], text: str, references: Sequence[re.Match[str]]
) -> None:
    """Raise ApplicationError if ``text`` names a table beside ``references`` to its columns."""
    code = masked(text)
    for reference in reversed(references):
        code = code[: reference.start()] + code[reference.end() :]
    for table in tables:
        if re.search(rf"(?<![\w.]){re.escape(table)}\b(?!\s*\()", code, re.IGNORECASE):
            raise ApplicationError(f"{table} is a table; name one of its columns as {table}.COLUMN")


def _without(value: str, names: list[str]) -> str:
    """``value`` with columns of the current event in place of those of steps."""
    for reference in reversed(list(_references(value, names))):
        value = value[: reference.start()] + reference["column"] + value[reference.end() :]
    return value
