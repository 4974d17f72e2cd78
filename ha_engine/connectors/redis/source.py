"""The source kind ``redis`` reads the entries of a Redis stream by their ids, without a consumer
group.

The offset has the id of the last entry, so any node can read again after any offset. One script
reads the state of the stream and the entries after an id, and the server runs a script without
other commands in between. So what the state says is true for these entries.

The server counts all entries that were ever added to the stream, and the offset has this number for
the last entry that was read. When the first entry of the stream is behind the offset, everything
before it is gone. The entries that were added since, less those that are there, are then those that
were lost. If more are there than were added, the stream was created again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from ha_engine.connectors.redis.connection import Connection, RedisOptions, id_of, info_of
from ha_engine.connectors.streams import BATCH_BYTES_MAX, parsed_position, peeked, time_of
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, DeadLetter, Messages, SourceBatch, SourcePlace

_BLOCK_SECONDS = 0.5
_START = (0, 0)

_READ = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local at, most, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local own = redis.call('XRANGE', KEYS[1], at, at)
local found = {}
while #found < most and left > 0 do
  local some = redis.call('XRANGE', KEYS[1], '(' .. at, '+', 'COUNT', math.min(4, most - #found))
  if #some == 0 then break end
  for _, entry in ipairs(some) do
    local size = 0
    for _, part in ipairs(entry[2]) do size = size + #part end
    if size > left and #found > 0 then return {info, #own, found} end
    left = left - size
    found[#found + 1] = entry
    at = entry[1]
  end
end
return {info, #own, found}
"""
"""ARGV: an id, the limit of entries and that of bytes. Returns the state of the stream, how many
entries have this id, and the entries after it; or nothing if there is no stream."""


class RedisSourceOptions(RedisOptions):
    """The options of the source kind ``redis``, besides those of ``RedisOptions``.

    - ``value_field``: the field of an entry that is the message. Null makes a JSON object of all
      fields, whose values are text.
    - ``start``: without an offset, begin with the stream's ``first`` entry, or with the first
      ``new`` entry.
    - ``skip_lost``: continue after entries that the stream has lost before they were read. A dead
      letter has their number.
    """

    value_field: str | None = "value"
    start: Literal["first", "new"] = "first"
    skip_lost: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the source: all entries up to ``id`` are read. ``added`` is how many entries
    had been added to the stream up to this one."""

    stream: str
    id: tuple[int, int] = _START
    added: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError if ``text`` is no offset of this kind of source."""
        try:
            found = json.loads(text)
            return cls(found["stream"], id_of(found["id"]), int(found["added"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from error

    @property
    def written_id(self) -> str:
        return f"{self.id[0]}-{self.id[1]}"

    @property
    def text(self) -> str:
        return json.dumps(asdict(self) | {"id": self.written_id}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _State:
    """The answer of XINFO STREAM. ``added`` counts all entries that were ever added."""

    length: int
    first: tuple[int, int]
    last: tuple[int, int]
    added: int
    deleted: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    id: tuple[int, int]
    fields: Mapping[bytes, bytes]


class RedisSource:
    """Implements ``plugins.SourcePlugin``."""

    Options = RedisSourceOptions
    guarantee: ClassVar[str] = "exactly once: the stream is read by its ids"
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "id": pa.string(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "headers": pa.binary(),
    }

    def __init__(self, options: RedisSourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._connection = Connection(options, SourceRefused, SourceUnavailable)
        self._position = Position(options.stream)
        self._letters: list[DeadLetter] = []
        self._is_unsaved = False

    def check(self) -> None:
        """Connect, and look at the stream, which need not exist yet."""
        try:
            self._connection.open()
            self._look(Position(self._options.stream), 1)
        finally:
            self._connection.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows after ``offset``."""
        return peeked(self, offset, rows_max, seconds)

    def open(self, offset: str | None) -> None:
        self._letters, self._is_unsaved = [], False
        self._connection.open()
        if offset is None:
            state, _, _ = self._look(Position(self._options.stream), 1)
            self._position = self._start(state)
            return
        name, source = self._options.stream, self._place.source
        self._position = parsed_position(Position.parse, offset, name, source)
        state, has_own, _ = self._look(self._position, 1)
        self._position = self._checked(state, has_own)

    def close(self) -> None:
        self._connection.close()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        until = time.monotonic() + seconds
        while True:
            state, has_own, entries = self._look(self._position, rows_max)
            self._position = self._checked(state, has_own)
            if entries or self._letters or self._is_unsaved:
                return self._batch(state, entries)
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._wait(left)

    # -- the stream --------------------------------------------------------------------------------

    def _look(self, position: Position, count: int) -> tuple[_State, bool, list[_Entry]]:
        """Return the state of the stream, whether it has the entry of ``position``, and the entries
        after it."""
        found = self._connection.run(_READ, position.written_id, count, BATCH_BYTES_MAX)
        if not found:
            return _State(0, _START, _START, 0, _START), False, []
        info = info_of(found[0])
        if "entries-added" not in info:
            raise SourceRefused(
                f"{self._connection.where} is on a server before Redis 7.0, which does not count "
                "the entries of a stream, so lost entries would go unnoticed; use Redis 7.0"
            )
        first = info["first-entry"]
        state = _State(
            info["length"],
            id_of(first[0]) if first else _START,
            id_of(info["last-generated-id"]),
            info["entries-added"],
            id_of(info["max-deleted-entry-id"]),
        )
        entries = [
            _Entry(id_of(id), dict(zip(fields[::2], fields[1::2], strict=True)))
            for id, fields in found[2]
        ]
        return state, bool(found[1]), entries

    def _wait(self, seconds: float) -> None:
        """Wait until an entry comes, or for at most a part of ``seconds``."""
        limit = min(seconds, _BLOCK_SECONDS, self._options.timeout / 2)
        self._connection.call(
            *("XREAD", "COUNT", 1, "BLOCK", max(1, int(limit * 1000))),
            *("STREAMS", self._options.stream, self._position.written_id),
        )

    def _start(self, state: _State) -> Position:
        if self._options.start == "new":
            self._is_unsaved = True  # the first batch journals where "new" begins
            return Position(self._options.stream, state.last, state.added)
        return Position(self._options.stream, _START, state.added - state.length)

    def _checked(self, state: _State, has_own: bool) -> Position:
        """Return the position, or one behind it if entries are skipped. Raises SourceRefused if the
        stream has lost entries, or is another one."""
        position = self._position
        if position.id == _START and state.added == 0:
            return position  # the stream does not exist yet
        if state.last < position.id or state.added < position.added:
            reason = f"ends at id {_written(state.last)}, with {state.added} entries added"
            return self._replaced(state, reason)
        if state.length and state.first <= position.id:
            # Only the start of a stream is trimmed, so nothing after the position was.
            if not has_own and position.id != _START and state.deleted < position.id:
                return self._replaced(state, f"lacks the entry {position.written_id}")
            return position
        lost = state.added - position.added - state.length
        if lost < 0:
            return self._replaced(state, f"was created again, and has {state.length} entries")
        if not lost:
            return position
        reason = f"has lost {lost} entries after id {position.written_id}, before they were read"
        if not self._options.skip_lost:
            raise SourceRefused(
                f"{self._connection.where} {reason}: a limit such as MAXLEN, or a command, removed "
                "them; raise the limit, and set skip_lost: true to continue without these entries"
            )
        self._letters.append(DeadLetter(self._options.stream, f"the stream {reason}"))
        return Position(position.stream, position.id, state.added - state.length)

    def _replaced(self, state: _State, reason: str) -> Position:
        if not self._options.skip_lost:
            raise SourceRefused(
                f"{self._connection.where} {reason}, but the source has read up to id "
                f"{self._position.written_id}, the entry number {self._position.added}: the stream "
                "was deleted, or restored, or a replica without its last entries became the "
                "master; restore it, or give the source another name to read it from its start, or "
                "set skip_lost: true to continue with the entries that are there"
            )
        at = min(self._position.id, state.last)
        letter = f"the stream {reason}; the source continues after id {_written(at)}"
        self._letters.append(DeadLetter(self._options.stream, letter))
        unread = state.length if state.first > at else 0
        return Position(self._options.stream, at, state.added - unread)

    # -- a batch -----------------------------------------------------------------------------------

    def _batch(self, state: _State, entries: Sequence[_Entry]) -> SourceBatch:
        letters, self._letters, self._is_unsaved = self._letters, [], False
        position, kept = self._position, list[_Entry]()
        values = list[bytes | None]()
        for entry in entries:
            try:
                values.append(self._value(entry))
                kept.append(entry)
            except UnicodeDecodeError:
                place = f"{self._options.stream}, id {_written(entry.id)}"
                letters.append(DeadLetter(place, "a field is not UTF-8", repr(entry).encode()))
        if entries:
            last = entries[-1].id
            # Deleted entries count as added, so the number is exact only at the end of the stream.
            added = state.added if last == state.last else position.added + len(entries)
            position = Position(position.stream, last, min(added, state.added))
        self._position = position
        waiting = state.added - position.added
        age = max(0.0, time.time() - position.id[0] / 1000)
        ids = [_written(entry.id) for entry in kept]
        return SourceBatch(
            position.text,
            Messages(values, {name: _attribute(name, kept) for name in self._place.attributes}),
            letters,
            lambda row: f"{self._options.stream}, id {ids[row]}",
            Backlog(events=waiting, seconds=age if waiting else 0.0),
        )

    def _value(self, entry: _Entry) -> bytes | None:
        name = self._options.value_field
        if name is not None:
            return entry.fields.get(name.encode())
        fields = {key.decode(): value.decode() for key, value in entry.fields.items()}
        return json.dumps(fields, ensure_ascii=False).encode()


def _written(id: tuple[int, int]) -> str:
    return f"{id[0]}-{id[1]}"


def _attribute(name: str, entries: Sequence[_Entry]) -> list[Any]:
    match name:
        case "id":
            return [_written(entry.id) for entry in entries]
        case "timestamp":
            return [time_of(entry.id[0]) for entry in entries]
    field = name.removeprefix("header.").encode()
    return [entry.fields.get(field) for entry in entries]
