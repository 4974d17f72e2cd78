"""The sink kind ``redis`` adds each row as an entry to a Redis stream, of which it is the only
writer.

Row r of batch n has the id ``n-r``, so each row is there exactly once:

1. Ids of a stream only grow, and the stream remembers its last id even when it is trimmed. So a new
   active knows which rows are there.
2. One script adds some rows, and only if the stream's last id is that of the row before them. The
   server runs a script without other commands in between, so no row is left out, whatever fails.
3. A former active that was frozen finds another last id, and adds nothing. If it comes first, it
   adds the row that the new active would have added, since every node has the same rows.
4. The field ``Ha-Engine-Row`` of each entry has the key and a digest of its batch. Entries of
   someone else, or of another group with the same batch numbers, make the sink refuse.

Redis replicates asynchronously. If a replica becomes the master, entries that were added last may
be gone. ``replicas`` makes the sink wait until that many replicas have the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field

from ha_engine.connectors.redis.connection import Connection, RedisOptions, id_of
from ha_engine.connectors.row_label import NAME, RowLabel, labels_of, next_row
from ha_engine.connectors.streams import remaining_of, windows
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace

WINDOW_ENTRIES, WINDOW_BYTES = 500, 4 << 20
"""The most entries and bytes that one script adds. The server does nothing else meanwhile."""
REMEDY = "delete the stream, or give the sink a new stream"
_HEADER = "header."

_LOOK = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do
  if info[at] == 'last-generated-id' then
    return {info[at + 1], redis.call('XRANGE', KEYS[1], info[at + 1], info[at + 1])}
  end
end
"""
"""Returns the last id of the stream and its entry, if it is there; or nothing."""

_ADD = """
local last = '0-0'
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then last = info[at + 1] end
  end
end
if last ~= ARGV[1] then return 0 end
local at = 3
while at <= #ARGV do
  local command = {'XADD', KEYS[1]}
  if ARGV[2] ~= '' then
    command[3], command[4], command[5] = 'MAXLEN', '~', ARGV[2]
  end
  command[#command + 1] = ARGV[at]
  local parts = tonumber(ARGV[at + 1])
  for part = at + 2, at + 1 + parts do command[#command + 1] = ARGV[part] end
  redis.call(unpack(command))
  at = at + 2 + parts
end
return 1
"""
"""ARGV: the expected last id, the length that the stream is trimmed to or '', and for each entry
its id, the number of its parts, and its fields and values. Returns 0 if the last id differs."""

_SYNC = "return redis.call('XSETID', KEYS[1], ARGV[1])"
"""Writes the last id again. WAIT only waits for what its own connection has written."""


class RedisSinkOptions(RedisOptions):
    """The options of the sink kind ``redis``, besides those of ``RedisOptions``.

    - ``value_field``: the field of an entry that gets the message.
    - ``max_length``: about how many entries the stream keeps. Without it the stream keeps all.
    - ``replicas``: how many replicas must have a batch before it counts as delivered.
    """

    value_field: Annotated[str, Field(min_length=1)] = "value"
    max_length: Annotated[int, Field(ge=1)] | None = None
    replicas: Annotated[int, Field(ge=0)] = 0


class RedisSink:
    """Implements ``plugins.SinkPlugin``."""

    Options = RedisSinkOptions
    guarantee: ClassVar[str] = (
        "exactly once as the only writer of the stream: the id of an entry is batch-row; "
        "a failover of Redis itself may lose the last entries"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {"headers": pa.string()}

    def __init__(self, options: RedisSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        self._connection = Connection(options, SinkRefused, SinkUnavailable)

    def prepare(self, schema: pa.Schema) -> None:
        for name in self._place.attributes:
            field = name.removeprefix(_HEADER)
            if name.startswith(_HEADER) and field in (NAME, self._options.value_field):
                raise SinkRefused(
                    f"sink {self._place.sink} sets the field {field}, which has another use; "
                    "choose another name"
                )

    def check(self) -> None:
        """Connect, and look at the stream, which need not exist yet."""
        try:
            self._connection.open()
            self._look()
        finally:
            self._connection.close()

    def deliver(self, batch: OutputBatch) -> None:
        messages = self._messages(batch)
        labels = labels_of(batch, messages)
        if not messages:
            return
        try:
            self._remaining(batch)
            if not self._connection.is_open:
                self._connection.open()
            self._deliver(batch, messages, labels)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _messages(self, batch: OutputBatch) -> list[tuple[bytes, dict[str, str]]]:
        rows = batch.messages()
        headers = {
            name.removeprefix(_HEADER): values
            for name, values in rows.attributes.items()
            if name.startswith(_HEADER)
        }
        return [
            (
                value or b"",
                {name: of[row] for name, of in headers.items() if of[row] is not None},
            )
            for row, value in enumerate(rows.values)
        ]

    def _remaining(self, batch: OutputBatch) -> float:
        return remaining_of(batch, self._connection.where)

    # -- delivery ----------------------------------------------------------------------------------

    def _deliver(
        self,
        batch: OutputBatch,
        messages: Sequence[tuple[bytes, Mapping[str, str]]],
        labels: Sequence[RowLabel],
    ) -> None:
        done = -1
        while True:
            last, label = self._look()
            first = self._first(last, label, labels[0])
            if first >= len(messages):
                break
            if first <= done:
                raise SinkUnavailable(f"another node writes to {self._connection.where} too")
            done = first
            for at, end in _windows(messages, first):
                self._remaining(batch)
                if not self._add(last, at, messages[at:end], labels[at:end]):
                    break
                last = f"{batch.number}-{end - 1}"
            else:
                break
        if self._options.replicas:
            self._replicate(batch, f"{batch.number}-{len(messages) - 1}", has_written=done >= 0)

    def _look(self) -> tuple[str, RowLabel | None]:
        """Return the last id of the stream, and the label of its entry if it is there."""
        found = self._connection.run(_LOOK)
        if not found:
            return "0-0", None
        last, entries = found[0].decode(), found[1]
        if not entries:
            return last, None
        fields = entries[0][1]
        text = dict(zip(fields[::2], fields[1::2], strict=True)).get(NAME.encode(), b"")
        try:
            return last, RowLabel.parse(text.decode())
        except ValueError:
            return last, RowLabel("", "", 0, 0)

    def _first(self, last: str, label: RowLabel | None, wanted: RowLabel) -> int:
        """Return the first row of the batch of ``wanted`` that the stream does not have."""
        number, row = id_of(last)
        where = f"{self._connection.where}, at id {last},"
        if label is not None:
            return next_row(label if label.key else None, wanted, where, REMEDY)
        if number > wanted.batch:
            raise SinkRefused(
                f"{where} is empty after batch {number}, but the node delivers batch "
                f"{wanted.batch}: another node delivers, or the group was initialised again, or "
                f"its ledger was restored; {REMEDY}"
            )
        return row + 1 if number == wanted.batch else 0

    def _add(
        self,
        last: str,
        at: int,
        messages: Sequence[tuple[bytes, Mapping[str, str]]],
        labels: Sequence[RowLabel],
    ) -> bool:
        """Add entries directly after the id ``last``. Return False if the stream's last id
        differs."""
        length = self._options.max_length
        arguments: list[Any] = [last, "" if length is None else length]
        for row, ((value, headers), label) in enumerate(zip(messages, labels, strict=True), at):
            parts: list[Any] = [self._options.value_field, value, NAME, label.text]
            for name, text in headers.items():
                parts += [name, text]
            arguments += [f"{label.batch}-{row}", len(parts), *parts]
        return bool(self._connection.run(_ADD, *arguments))

    def _replicate(self, batch: OutputBatch, last: str, *, has_written: bool) -> None:
        """Wait until enough replicas have the batch."""
        if not has_written:
            self._connection.run(_SYNC, last)
        limit = min(self._options.timeout / 2, self._remaining(batch))
        have = self._connection.call("WAIT", self._options.replicas, max(1, int(limit * 1000)))
        if have < self._options.replicas:
            raise SinkUnavailable(
                f"{have} of {self._options.replicas} replicas have batch {batch.number} of "
                f"{self._connection.where}; start a replica, or lower the key replicas"
            )


def _windows(
    messages: Sequence[tuple[bytes, Mapping[str, str]]], first: int
) -> Iterator[tuple[int, int]]:
    return windows([len(value) for value, _ in messages], first, WINDOW_ENTRIES, WINDOW_BYTES)
