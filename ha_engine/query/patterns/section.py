"""Read the section ``pattern`` of a query.

A part of a pattern is a mapping of one key. The key is the name of a step, with a quantifier after
it as in a regular expression: ``failed{3,}``. The value is the condition of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from ha_engine.config.quantities import Size, parse_duration
from ha_engine.errors import ApplicationError
from ha_engine.query.application import SYSTEM_COLUMNS, StreamSpec
from ha_engine.query.file_words import Name, Section, found, keys_of, nearest, sentence
from ha_engine.query.patterns.automaton import states_of
from ha_engine.query.patterns.pattern import (
    KEY_BYTES_MAX,
    KEYS_MAX,
    Absent,
    AfterMatch,
    Choice,
    One,
    Part,
    Pattern,
    Repeat,
    Sequence,
    Step,
    can_be_empty,
    steps_of,
)

STEPS_MAX = 64
ALL_OF_MAX = 4
_KEY = re.compile(
    r"(?P<absent>not\s+)?(?P<name>[A-Za-z_]\w{0,62})\s*"
    r"(?P<quantifier>[?*+]|\{\s*\d*\s*,?\s*\d*\s*\})?(?P<lazy>\??)"
)
_LONG_TIME = re.compile(r"(\d+(?:\.\d+)?)\s+(millisecond|second|minute|hour|day|week)s?")
SECONDS = {
    "millisecond": 0.001,
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
}
_GROUPS = ("any_of", "all_of", "group")
RESERVED = (*_GROUPS, "match_start", "match_end", "null", "true", "false")
WITHIN_MAX = 36_500 * 86_400.0
"""A hundred years."""


def _time(value: object) -> float:
    """Seconds of ``15 minutes`` or ``15m``, as for the delay of a watermark."""
    if isinstance(value, str) and (long := _LONG_TIME.fullmatch(value.strip())):
        return float(long[1]) * SECONDS[long[2]]
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a time; write one such as '15 minutes'") from None


Time = Annotated[float, BeforeValidator(_time), Field(gt=0)]


class StepSection(Section):
    """The value of a step that needs more than a condition."""

    where: str | None = None
    source: Name | None = Field(None, alias="from")
    contiguity: Literal["relaxed", "strict"] | None = None
    seconds: Time | None = Field(None, alias="for")


class AfterMatchSection(Section):
    to_first: Name | None = None
    to_last: Name | None = None


class PatternSection(Section):
    source: Name | list[Name] = Field(alias="from")
    tables: list[Name] = Field(default_factory=list)
    by: list[str] | dict[Name, list[str]] = Field(default_factory=list)
    sequence: list[dict[str, Any]] = Field(min_length=1)
    within: Annotated[Time, Field(le=WITHIN_MAX)]
    contiguity: Literal["relaxed", "strict"] = "relaxed"
    after_match: Literal["next", "past_last"] | AfterMatchSection = "next"
    columns: dict[Name, str] | None = Field(None, alias="yield")
    max_state_per_key: Annotated[Size, Field(le=1 << 30)] = KEY_BYTES_MAX
    max_keys: int = Field(KEYS_MAX, ge=1)


def pattern_of(where: str, raw: PatternSection, streams: Mapping[str, StreamSpec]) -> Pattern:
    """Check a section, and convert it. Raises ApplicationError."""
    sources = (raw.source,) if isinstance(raw.source, str) else tuple(raw.source)
    tables = tuple(raw.tables)
    _require_streams(where, sources, tables, streams)
    by = _by(where, raw, (*sources, *tables), streams)
    reader = _Parts(f"{where}.sequence", sources, strict=raw.contiguity == "strict")
    part = Sequence(tuple(reader.part(one) for one in raw.sequence))
    inputs = [streams[name] for name in (*sources, *tables)]
    require_sound(f"{where}.sequence", part, inputs, tables)
    after_match, after_step = _after_match(where, raw, part)
    columns = raw.columns
    if columns is None:
        keys = {column: f"`{column}`" for column in by[sources[0]]}
        columns = {**keys, "match_start": "match_start", "match_end": "match_end"}
    return Pattern(
        sources,
        by,
        part,
        raw.within,
        MappingProxyType(columns),
        after_match,
        after_step,
        tables,
        raw.max_state_per_key,
        raw.max_keys,
    )


def _require_streams(
    where: str,
    sources: tuple[str, ...],
    tables: tuple[str, ...],
    streams: Mapping[str, StreamSpec],
) -> None:
    places = [("from", name) for name in sources] + [("tables", name) for name in tables]
    for number, (place, name) in enumerate(places):
        if name in (other for _, other in places[:number]):
            raise ApplicationError(f"{where}.{place} names the stream {name!r} twice; remove one")
        if name not in streams:
            raise ApplicationError(
                f"{where}.{place}: there is no stream {name!r}{nearest(name, list(streams))}"
            )
        require_watermark(f"{where}.{place}", streams[name])


def require_watermark(where: str, stream: StreamSpec) -> None:
    """Raise ApplicationError if a pattern cannot know when it has all events up to a time."""
    if stream.watermark is None:
        raise ApplicationError(
            f"{where}: stream {stream.name!r} has no watermark, which says when all events up to a "
            "time have come; give the stream a watermark"
        )


def _by(
    where: str, raw: PatternSection, sources: tuple[str, ...], streams: Mapping[str, StreamSpec]
) -> MappingProxyType[str, tuple[str, ...]]:
    given = raw.by if isinstance(raw.by, dict) else dict.fromkeys(sources, raw.by)
    if set(given) != set(sources):
        raise ApplicationError(
            f"{where}.by needs the columns of each stream in from and tables, and no other"
        )
    if len({len(columns) for columns in given.values()}) > 1:
        raise ApplicationError(f"{where}.by: each stream needs the same number of columns")
    for name, columns in given.items():
        known = [column.name for column in streams[name].columns]
        for column in columns:
            if column not in known:
                raise ApplicationError(
                    f"{where}.by: stream {name!r} has no column {column!r}{nearest(column, known)}"
                )
            if columns.count(column) > 1 or column in RESERVED:
                raise ApplicationError(
                    f"{where}.by: {column!r} is named twice, or is a name that the pattern needs; "
                    "remove or rename it"
                )
    _require_equal_types(where, given, streams)
    return MappingProxyType({name: tuple(given[name]) for name in sources})


def _require_equal_types(
    where: str, by: Mapping[str, list[str]], streams: Mapping[str, StreamSpec]
) -> None:
    kinds = [
        (f"{name}.{column}", streams[name].arrow_schema.field(column).type)
        for name, columns in by.items()
        for column in columns
    ]
    width = len(next(iter(by.values())))
    for number, (column, kind) in enumerate(kinds):
        first, wanted = kinds[number % width]
        if kind != wanted:
            raise ApplicationError(
                f"{where}.by: {first} is {wanted} and {column} is {kind}; keys need one type"
            )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Converts the parts of a sequence. Steps without ``contiguity`` are adjacent if ``strict``."""

    where: str
    streams: tuple[str, ...]
    strict: bool

    def part(self, raw: Mapping[str, Any]) -> Part:
        if len(raw) != 1:
            raise ApplicationError(
                f"{self.where}: a part has one key, the name of a step, not "
                f"{', '.join(map(str, raw)) or 'none'}"
            )
        (text, value), *_ = raw.items()
        key = _KEY.fullmatch(str(text).strip())
        if key is None:
            raise ApplicationError(
                f"{self.where}: {text!r} is not the name of a step with a quantifier; write it "
                "such as 'paid', 'failed{3,}', 'retry*' or 'not paid'"
            )
        where = f"{self.where}.{key['name']}"
        if key["name"] in _GROUPS and not key["absent"]:
            inner = self._group(where, key["name"], value)
        else:
            inner = self._step(where, key, value)
        if key["quantifier"] is None:
            return inner
        return quantified(where, inner, key["quantifier"], greedy=not key["lazy"])

    def _group(self, where: str, kind: str, value: Any) -> Part:
        if not isinstance(value, list) or not value:
            raise ApplicationError(f"{where} must be a list of parts")
        parts = tuple(
            Sequence(tuple(map(self.part, one))) if isinstance(one, list) else self.part(one)
            for one in value
        )
        if kind == "group":
            return Sequence(parts)
        if kind == "any_of":
            return Choice(parts)
        if len(parts) > ALL_OF_MAX:
            raise ApplicationError(f"{where} has more than {ALL_OF_MAX} parts; write fewer")
        return Choice(tuple(Sequence(order) for order in permutations(parts)))

    def _step(self, where: str, key: re.Match[str], value: Any) -> Part:
        section = _step_section(where, value)
        stream = section.source or self.streams[0]
        if section.source is None and len(self.streams) > 1:
            raise ApplicationError(
                f"{where}.from is missing, which says whether the event is one of "
                f"{' or '.join(self.streams)}"
            )
        if stream not in self.streams:
            raise ApplicationError(
                f"{where}.from: the pattern has no stream {stream!r}"
                f"{nearest(stream, list(self.streams))}"
            )
        step = Step(key["name"], stream, section.where)
        if key["absent"]:
            if section.contiguity:
                raise ApplicationError(f"{where}: an absent event has no contiguity; remove it")
            return Absent(step, section.seconds)
        if section.seconds is not None:
            raise ApplicationError(f"{where}.for is only for an absent event, 'not {step.name}'")
        contiguity = section.contiguity or ("strict" if self.strict else "relaxed")
        return One(step, adjacent=contiguity == "strict")


def _step_section(where: str, value: Any) -> StepSection:
    match value:
        case None:
            given: Mapping[str, Any] = {}
        case bool():
            given = {"where": str(value).lower()}
        case str():
            given = {"where": value}
        case Mapping():
            given = value
        case _:
            raise ApplicationError(f"{where} must be a condition, such as \"type = 'paid'\"")
    try:
        return StepSection.model_validate(given)
    except ValidationError as error:
        reason = sentence(found(error), lambda place: keys_of(StepSection))
        raise ApplicationError(f"{where}.{reason}") from None


def quantified(where: str, part: Part, quantifier: str, *, greedy: bool) -> Repeat:
    """``part`` with a quantifier such as ``+`` or ``{2,}``. Raises ApplicationError."""
    if isinstance(part, Absent):
        raise ApplicationError(f"{where}: an absent event has no quantifier; remove {quantifier!r}")
    match quantifier:
        case "?":
            return Repeat(part, 0, 1, greedy)
        case "*":
            return Repeat(part, 0, None, greedy)
        case "+":
            return Repeat(part, 1, None, greedy)
    least, comma, most = (text.strip() for text in quantifier[1:-1].partition(","))
    if not least and not most:
        raise ApplicationError(f"{where}: {quantifier!r} needs a number, such as {{3}} or {{3,}}")
    if not comma:
        most = least
    repeat = Repeat(part, int(least or 0), int(most) if most else None, greedy)
    if repeat.most is not None and repeat.most < max(repeat.least, 1):
        raise ApplicationError(f"{where}: {quantifier!r} has no number of repetitions")
    return repeat


def require_sound(
    where: str, part: Sequence, streams: list[StreamSpec], tables: tuple[str, ...] = ()
) -> None:
    """Raise ApplicationError if the parts make no pattern."""
    taken = {column.name.lower() for stream in streams for column in stream.columns}
    taken |= {*RESERVED, *SYSTEM_COLUMNS}
    for name in tables:
        if name.lower() in taken:
            raise ApplicationError(
                f"{where}: {name!r} is a table and the name of a column or a key word; rename the "
                "column or the stream"
            )
    taken |= set(map(str.lower, tables))
    steps: dict[str, Step] = {}
    for step in steps_of(part):
        if step.name.lower() in taken:
            raise ApplicationError(
                f"{where}: {step.name!r} is the name of a column, a table or a key word; give the "
                "step another name"
            )
        if steps.setdefault(step.name.lower(), step) != step:
            raise ApplicationError(
                f"{where}: the step {step.name!r} has two conditions; give one of them another name"
            )
    if len(steps) > STEPS_MAX:
        raise ApplicationError(f"{where} has more than {STEPS_MAX} steps; write fewer")
    if can_be_empty(part):
        raise ApplicationError(
            f"{where} matches without any event; let a step be neither optional nor absent"
        )
    for inner in _inner(part):
        if isinstance(inner, Repeat) and can_be_empty(inner.part):
            raise ApplicationError(f"{where} repeats a part that matches without any event")
    _require_absent_fit(where, part)
    try:
        states_of(part)
    except ApplicationError as error:
        raise ApplicationError(f"{where}: {error}") from None


def _require_absent_fit(where: str, part: Sequence) -> None:
    absent = [one for one in _inner(part) if isinstance(one, Absent)]
    if len(absent) > sum(isinstance(one, Absent) for one in part.parts):
        raise ApplicationError(f"{where}: an absent event cannot be within another part")
    if isinstance(part.parts[0], Absent):
        raise ApplicationError(
            f"{where} begins with an absent event; begin with the event after which it is absent"
        )
    for before, after in zip(part.parts, part.parts[1:], strict=False):
        if isinstance(before, Absent) and _begins_adjacent(after):
            raise ApplicationError(
                f"{where}: no event can be between two adjacent ones, so 'not {before.step.name}' "
                "says nothing; remove it, or set contiguity: relaxed on the step after it"
            )
    for one in part.parts[:-1]:
        if isinstance(one, Absent) and one.seconds is not None:
            raise ApplicationError(f"{where}.{one.step.name}.for is only at the end of a sequence")


def _inner(part: Part) -> Iterator[Part]:
    yield part
    match part:
        case Sequence(parts) | Choice(parts):
            for one in parts:
                yield from _inner(one)
        case Repeat(one):
            yield from _inner(one)


def _begins_adjacent(part: Part) -> bool:
    match part:
        case One(_, adjacent):
            return adjacent
        case Sequence(parts):
            return _begins_adjacent(parts[0])
        case Choice(parts):
            return any(map(_begins_adjacent, parts))
        case Repeat(one):
            return _begins_adjacent(one)
        case Absent():
            return False


def _after_match(where: str, raw: PatternSection, part: Sequence) -> tuple[AfterMatch, str | None]:
    match raw.after_match:
        case "next":
            return AfterMatch.NEXT, None
        case "past_last":
            return AfterMatch.PAST_LAST, None
        case AfterMatchSection(to_first=str(step), to_last=None):
            found = AfterMatch.TO_FIRST, step
        case AfterMatchSection(to_first=None, to_last=str(step)):
            found = AfterMatch.TO_LAST, step
        case _:
            raise ApplicationError(f"{where}.after_match needs either to_first or to_last")
    names = [one.name for one in steps_of(part)]
    if step not in names:
        raise ApplicationError(
            f"{where}.after_match: there is no step {step!r}{nearest(step, names)}"
        )
    return found
