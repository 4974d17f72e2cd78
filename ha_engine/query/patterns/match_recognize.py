"""Read MATCH_RECOGNIZE clauses of a SQL query, as SQL:2016 defines them (ISO/IEC 19075-5).

A clause follows the name of a stream. It becomes a pattern whose events are adjacent, and a view in
the query's text. ``WITHIN INTERVAL`` after ``PATTERN`` is mandatory, because a state without it
would grow for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Never

from ha_engine.errors import ApplicationError
from ha_engine.query.application import StreamSpec
from ha_engine.query.patterns.pattern import (
    AfterMatch,
    Choice,
    One,
    Part,
    Pattern,
    Sequence,
    Step,
    steps_of,
)
from ha_engine.query.patterns.section import (
    ALL_OF_MAX,
    SECONDS,
    WITHIN_MAX,
    quantified,
    require_sound,
    require_watermark,
)
from ha_engine.query.sql_words import closing, listed, masked, without_comments

_CLAUSE = re.compile(r"(?P<stream>\w+|`[^`]+`)\s+MATCH_RECOGNIZE\s*\(", re.IGNORECASE)
_PART = re.compile(
    r"\b(PARTITION\s+BY|ORDER\s+BY|MEASURES|ONE\s+ROW\s+PER\s+MATCH|ALL\s+ROWS\s+PER\s+MATCH"
    r"|AFTER\s+MATCH\s+SKIP|PATTERN|WITHIN|SUBSET|DEFINE)\b",
    re.IGNORECASE,
)
_ORDER = (
    "PARTITION BY",
    "ORDER BY",
    "MEASURES",
    "ONE ROW PER MATCH",
    "AFTER MATCH SKIP",
    "PATTERN",
    "WITHIN",
    "DEFINE",
)
_INTERVAL = re.compile(
    r"INTERVAL\s*'?\s*(?P<number>\d+(?:\.\d+)?)\s*'?\s*(?P<unit>[A-Za-z]+?)S?\s*'?", re.IGNORECASE
)
_SKIP = re.compile(
    r"(?P<past>PAST\s+LAST\s+ROW)|(?P<next>TO\s+NEXT\s+ROW)"
    r"|TO\s+(?:(?P<which>FIRST|LAST)\s+)?(?P<step>\w+)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?P<text>.+?)\s+AS\s+(?P<name>\w+|`[^`]+`)\s*", re.IGNORECASE | re.DOTALL)
_DEFINED = re.compile(r"\s*(?P<name>\w+)\s+AS\s+(?P<text>.+)", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(
    r"\s*(?:(?P<permute>PERMUTE\s*\()|(?P<name>[A-Za-z_]\w*)|(?P<sign>[()|,])"
    r"|(?P<quantifier>[?*+]|\{\s*\d*\s*,?\s*\d*\s*\})(?P<lazy>\??)|(?P<other>\S))",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\bFINAL\s+(?=\w+\s*\()", re.IGNORECASE)
_REFUSED = re.compile(r"\b(RUNNING\s+\w+|NEXT|CLASSIFIER|MATCH_NUMBER)\s*\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PatternsInSql:
    """A SQL text with the names of views in place of its clauses, and the pattern of each view."""

    text: str
    patterns: MappingProxyType[str, Pattern]


def patterns_in(where: str, sql: str, streams: Mapping[str, StreamSpec]) -> PatternsInSql:
    """Find the clauses in ``sql``. Raises ApplicationError."""
    found: dict[str, Pattern] = {}
    code = masked(sql)
    while clause := _CLAUSE.search(code):
        end = closing(code, clause.end())
        if end is None:
            raise ApplicationError(f"{where}: a parenthesis of MATCH_RECOGNIZE is not closed")
        name = f"match_recognize_{len(found) + 1}"
        stream = _stream(where, clause["stream"].strip("`"), streams)
        inner = without_comments(sql[clause.end() : end])
        found[name] = _Clause(f"{where}: MATCH_RECOGNIZE", stream, inner).read()
        sql = sql[: clause.start()] + name + sql[end + 1 :]
        code = masked(sql)
    if re.search(r"\bMATCH_RECOGNIZE\b", code, re.IGNORECASE):
        raise ApplicationError(
            f"{where}: MATCH_RECOGNIZE (...) follows the name of a stream, not a subquery"
        )
    return PatternsInSql(sql, MappingProxyType(found))


def _stream(where: str, name: str, streams: Mapping[str, StreamSpec]) -> StreamSpec:
    for stream in streams.values():
        if stream.name.lower() == name.lower():
            return stream
    raise ApplicationError(f"{where}: MATCH_RECOGNIZE follows {name!r}, which is no stream")


class _Clause:
    """The text between the parentheses of a clause over ``stream``."""

    def __init__(self, where: str, stream: StreamSpec, text: str) -> None:
        self._where, self._stream = where, stream
        self._parts = self._divided(text)

    def read(self) -> Pattern:
        require_watermark(self._where, self._stream)
        conditions = self._once("DEFINE", self._definitions())
        part = _PatternText(self._where, self._stream.name, self._pattern_text(), conditions).read()
        require_sound(self._where, part, [self._stream])
        names = {step.name.lower(): step.name for step in steps_of(part)}
        if unused := [name for name in conditions if name not in names]:
            raise ApplicationError(f"{self._where}: DEFINE {unused[0]} is not in PATTERN")
        by = tuple(self._keys())
        after, step = self._after_match()
        if step is not None and step.lower() not in names:
            raise ApplicationError(f"{self._where}: AFTER MATCH SKIP names no step {step!r}")
        columns = [*((one, f"`{one}`") for one in by), *self._measures()]
        self._once("the output", columns)
        return Pattern(
            (self._stream.name,),
            MappingProxyType({self._stream.name: by}),
            part,
            self._within(),
            MappingProxyType(dict(columns)),
            after,
            None if step is None else names[step.lower()],
        )

    def _once(self, where: str, named: Iterable[tuple[str, str]]) -> dict[str, str]:
        """The texts by name in lower case. Raises ApplicationError if two have one name."""
        found: dict[str, str] = {}
        for name, text in named:
            if name.lower() in found:
                raise ApplicationError(f"{self._where}: {where} has {name} twice; rename one")
            found[name.lower()] = text
        return found

    def _divided(self, text: str) -> dict[str, str]:
        """The parts of the clause by their first words."""
        code = masked(text)
        places = [found for found in _PART.finditer(code) if _depth(code, found.start()) == 0]
        if not places or code[: places[0].start()].strip():
            raise ApplicationError(f"{self._where} begins with PARTITION BY or ORDER BY")
        ends = [*(found.start() for found in places[1:]), len(text)]
        parts: dict[str, str] = {}
        for found, end in zip(places, ends, strict=True):
            name = " ".join(found[1].upper().split())
            if name in ("ALL ROWS PER MATCH", "SUBSET"):
                raise ApplicationError(f"{self._where}: {name} is not supported; remove it")
            if name in parts:
                raise ApplicationError(f"{self._where} has {name} twice; remove one")
            if parts and _ORDER.index(name) < _ORDER.index([*parts][-1]):
                raise ApplicationError(f"{self._where}: {name} belongs before {[*parts][-1]}")
            parts[name] = text[found.end() : end].strip()
        return parts

    def _part(self, name: str, example: str) -> str:
        text = self._parts.get(name)
        if not text:
            raise ApplicationError(f"{self._where} has no {name}; write one such as {example}")
        return text

    def _keys(self) -> Iterator[str]:
        watermark = self._stream.watermark
        assert watermark is not None
        order = self._part("ORDER BY", f"ORDER BY {watermark.column}").strip("` ")
        if order.lower().removesuffix(" asc") != watermark.column.lower():
            raise ApplicationError(
                f"{self._where}: ORDER BY is the column of the watermark, {watermark.column}"
            )
        known = {column.name.lower(): column.name for column in self._stream.columns}
        for text in filter(None, self._parts.get("PARTITION BY", "").split(",")):
            name = text.strip().strip("`")
            if name.lower() not in known:
                raise ApplicationError(
                    f"{self._where}: PARTITION BY {name!r} is no column of {self._stream.name}"
                )
            yield known[name.lower()]

    def _measures(self) -> Iterator[tuple[str, str]]:
        for text in listed(self._parts.get("MEASURES", "")):
            named = _NAMED.fullmatch(text)
            if named is None:
                raise ApplicationError(f"{self._where}: the measure {text!r} needs AS and a name")
            yield named["name"].strip("`"), self._expression(named["text"])

    def _definitions(self) -> Iterator[tuple[str, str]]:
        for text in listed(self._parts.get("DEFINE", "")):
            defined = _DEFINED.fullmatch(text)
            if defined is None:
                raise ApplicationError(f"{self._where}: DEFINE {text!r} needs a step and AS")
            yield defined["name"], self._expression(defined["text"])

    def _expression(self, text: str) -> str:
        if refused := _REFUSED.search(masked(text)):
            raise ApplicationError(f"{self._where}: {refused[1]} is not supported")
        return _FINAL.sub("", text).strip()

    def _pattern_text(self) -> str:
        text = self._part("PATTERN", "PATTERN (A B+ C)")
        if not (text.startswith("(") and text.endswith(")")):
            raise ApplicationError(f"{self._where}: PATTERN needs parentheses, not {text!r}")
        return text

    def _within(self) -> float:
        text = self._part("WITHIN", "PATTERN (...) WITHIN INTERVAL 15 MINUTES")
        found = _INTERVAL.fullmatch(text)
        if found is None or found["unit"].lower() not in SECONDS:
            raise ApplicationError(
                f"{self._where}: WITHIN {text} is no time; write one such as INTERVAL 15 MINUTES"
            )
        seconds = float(found["number"]) * SECONDS[found["unit"].lower()]
        if not 0 < seconds <= WITHIN_MAX:
            raise ApplicationError(f"{self._where}: WITHIN {text} is not up to a hundred years")
        return seconds

    def _after_match(self) -> tuple[AfterMatch, str | None]:
        text = self._parts.get("AFTER MATCH SKIP")
        if text is None:
            return AfterMatch.PAST_LAST, None
        found = _SKIP.fullmatch(text)
        if found is None:
            raise ApplicationError(f"{self._where}: AFTER MATCH SKIP {text!r} is not known")
        if found["past"]:
            return AfterMatch.PAST_LAST, None
        if found["next"]:
            return AfterMatch.NEXT, None
        first = (found["which"] or "LAST").upper() == "FIRST"
        return AfterMatch.TO_FIRST if first else AfterMatch.TO_LAST, found["step"]


class _PatternText:
    """Reads the regular expression of a clause by recursive descent."""

    def __init__(self, where: str, stream: str, text: str, conditions: Mapping[str, str]) -> None:
        self._where, self._stream, self._conditions = where, stream, conditions
        self._tokens = list(_TOKEN.finditer(text))
        self._spelled: dict[str, str] = {}
        self._at = 0

    def read(self) -> Sequence:
        part = self._choice()
        if self._at < len(self._tokens):
            self._refuse()
        return part if isinstance(part, Sequence) else Sequence((part,))

    def _choice(self) -> Part:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Part:
        parts = []
        while (token := self._token()) and token["sign"] not in ("|", ")", ","):
            parts.append(self._repeated())
        if not parts:
            self._refuse()
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self) -> Part:
        part, token = self._one(), self._token()
        if token is None or not token["quantifier"]:
            return part
        self._at += 1
        return quantified(self._where, part, token["quantifier"], greedy=not token["lazy"])

    def _one(self) -> Part:
        token = self._token()
        if token is not None and token["name"]:
            self._at += 1
            name = token["name"]
            name = self._spelled.setdefault(name.lower(), name)
            condition = self._conditions.get(name.lower())
            return One(Step(name, self._stream, condition), adjacent=True)
        if self._takes("("):
            part = self._choice()
            self._require(")")
            return part
        if token is not None and token["permute"]:
            self._at += 1
            return self._permutations()
        return self._refuse()

    def _permutations(self) -> Part:
        parts = [self._choice()]
        while self._takes(","):
            parts.append(self._choice())
        self._require(")")
        if len(parts) > ALL_OF_MAX:
            raise ApplicationError(f"{self._where}: PERMUTE has at most {ALL_OF_MAX} parts")
        return Choice(tuple(Sequence(order) for order in permutations(parts)))

    def _token(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _takes(self, sign: str) -> bool:
        token = self._token()
        if token is None or token["sign"] != sign:
            return False
        self._at += 1
        return True

    def _require(self, sign: str) -> None:
        if not self._takes(sign):
            self._refuse()

    def _refuse(self) -> Never:
        token = self._token()
        found = "its end" if token is None else repr(token[0].strip())
        raise ApplicationError(
            f"{self._where}: PATTERN has {found} where a step, a parenthesis or a quantifier fits; "
            "anchors and exclusions are not supported"
        )


def _depth(code: str, at: int) -> int:
    return code.count("(", 0, at) - code.count(")", 0, at)
