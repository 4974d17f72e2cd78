"""The sink kind ``nats`` publishes each row as a message to a JetStream stream.

With ``exclusive: true`` the sink is the stream's only writer, and each row is there exactly once:

1. Each message names the sequence of the message before it as the stream's expected last sequence.
   The server stores a message only at the expected place. JetStream has no transactions, so a crash
   may leave the first rows of a batch. The sink does not wait for each answer. So a message also
   names the id of the message before it: if someone else's message had taken that place, the
   sequence alone would fit, and a row would be missing.
2. Each message has the header ``Ha-Engine-Row``: the key of its batch, a digest of the batch, the
   number of the row and the number of rows. The last message of the stream thus says how far the
   sink is. A new active reads it, and continues after that row.
3. A former active may be frozen while it publishes. Every node has the same rows in the same order,
   so a message that it still sends either has the next row at the next place, which is right
   whoever sends it, or has an old place, and the server refuses it.
4. A digest that differs, a later batch, or a message of someone else at the end of the stream mean
   that the rows there are not the sink's. The sink refuses to continue.

That text is the ``Nats-Msg-Id`` of the message too. With ``exclusive: false`` only this id prevents
repetitions: the server ignores a repeated message within the stream's duplicate window. After that
window, rows of a batch whose delivery was interrupted are there twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import AfterValidator

from ha_engine.connectors.nats.connection import ApiError, Connection, NatsOptions
from ha_engine.connectors.nats.subjects import checked_subject, is_covered, is_subject
from ha_engine.connectors.row_label import NAME, RowLabel, labels_of, next_row
from ha_engine.connectors.streams import remaining_of, windows
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import OutputBatch, SinkPlace

REMEDY = "purge the stream, or give the sink a new stream"
WINDOW_MESSAGES, WINDOW_BYTES = 500, 4 << 20
"""The most messages and bytes that the sink publishes before it waits for the answers."""
_WRONG_ID, _WRONG_SEQUENCE = 10070, 10071
_HEADER = "header."


class NatsSinkOptions(NatsOptions):
    """The options of the sink kind ``nats``, besides those of ``NatsOptions``.

    - ``subject``: the subject of each message, unless a column is mapped to the attribute
      ``subject``.
    - ``exclusive``: whether the sink is the only writer of the stream.
    """

    subject: Annotated[str, AfterValidator(checked_subject)] | None = None
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class _Message:
    subject: str
    value: bytes
    headers: Mapping[str, str]

    @property
    def size(self) -> int:
        texts = (self.subject, *self.headers, *self.headers.values())
        return len(self.value) + sum(len(text.encode()) + 4 for text in texts)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of the stream: its last sequence, whether a message is there, and its label."""

    sequence: int
    is_kept: bool
    label: RowLabel | None


class _Moved(Exception):
    """The stream does not end where the sink expected."""


@dataclass
class _Window:
    """The answers to some publications, in any order."""

    wanted: int
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, message: Any) -> None:
        headers = message.headers or {}
        if headers.get("Status") == "503":
            answer = {"error": {"code": 503, "description": "no stream took the message"}}
        else:
            answer = json.loads(message.data)
        self.answers[int(message.subject.rpartition(".")[2])] = answer
        if len(self.answers) == self.wanted:
            self.done.set()


class NatsSink:
    """Implements ``plugins.SinkPlugin``."""

    Options = NatsSinkOptions
    guarantee: ClassVar[str] = (
        "exactly once as the only writer of the stream: each message names the one before it; "
        "with exclusive: false at least once, without repetitions in the duplicate window"
    )
    attributes: ClassVar[Mapping[str, pa.DataType]] = {
        "subject": pa.string(),
        "headers": pa.string(),
    }

    def __init__(self, options: NatsSinkOptions, place: SinkPlace) -> None:
        self._options, self._place = options, place
        name = f"{place.group} {place.query} {place.sink}"
        self._connection = Connection(options, name, SinkRefused, SinkUnavailable)
        # The subjects of the stream, and its end as far as this connection knows.
        self._subjects: tuple[str, ...] = ()
        self._tail: _Tail | None = None
        # The last sequence that a server confirmed to this instance.
        self._confirmed = 0

    def prepare(self, schema: pa.Schema) -> None:
        if self._options.subject is None and "subject" not in self._place.attributes:
            raise SinkRefused(
                f"sink {self._place.sink} has no subject; write the key subject, or map a column "
                "to the attribute subject"
            )
        for name in self._place.attributes:
            header = name.removeprefix(_HEADER)
            if name.startswith(_HEADER) and header.lower().startswith(("nats-", "ha-engine-")):
                raise SinkRefused(
                    f"sink {self._place.sink} sets the header {header}, whose name is reserved; "
                    "choose another name"
                )

    def check(self) -> None:
        """Connect, and look at the stream."""
        try:
            self._connection.open()
            self._connection.call(self._look(), self._options.timeout * 2)
            fixed = self._options.subject
            self._require_covered([] if fixed is None else [fixed])
        finally:
            self.close()

    def deliver(self, batch: OutputBatch) -> None:
        messages = self._messages(batch)
        if not messages:
            return
        try:
            if not self._connection.is_open:
                self._tail = None
                self._connection.open(self._remaining(batch))
            self._connection.call(self._deliver(batch, messages), self._remaining(batch))
        except BaseException:
            # What this connection has sent and not confirmed may still arrive at the server.
            self.close()
            raise

    def close(self) -> None:
        self._tail = None
        self._connection.close()

    def _remaining(self, batch: OutputBatch) -> float:
        return remaining_of(batch, self._connection.where)

    # -- messages ----------------------------------------------------------------------------------

    def _messages(self, batch: OutputBatch) -> list[_Message]:
        """Return the messages of ``batch``, and put aside the rows that no message can have.

        The choice depends on the rows alone, so every node numbers the messages alike.
        """
        rows = batch.messages()
        subjects = rows.attributes.get("subject")
        headers = {
            name.removeprefix(_HEADER): values
            for name, values in rows.attributes.items()
            if name.startswith(_HEADER)
        }
        found = list[_Message]()
        for row, value in enumerate(rows.values):
            subject = self._options.subject if subjects is None else subjects[row]
            subject = self._options.subject if subject is None else subject
            own = {name: values[row] for name, values in headers.items()}
            own = {name: text for name, text in own.items() if text is not None}
            if reason := _reason(subject, own):
                self._place.put_aside(batch, reason, batch.read().slice(row, 1))
            else:
                found.append(_Message(subject or "", value or b"", own))
        return found

    # -- delivery ----------------------------------------------------------------------------------

    async def _deliver(self, batch: OutputBatch, messages: Sequence[_Message]) -> None:
        labels = labels_of(
            batch, [(one.value, {**one.headers, "": one.subject}) for one in messages]
        )
        if self._tail is None:
            self._tail = await self._look()
        self._require_covered({one.subject for one in messages})
        if not self._options.exclusive:
            for first, last in _windows(messages, 0):
                await self._publish(batch, messages[first:last], labels[first:last], None)
            return
        done = -1
        while True:
            first = self._first(labels[0])
            if first <= done:
                raise SinkUnavailable(
                    f"{self._connection.where} refused row {first} of batch {batch.number}"
                )
            done = first
            try:
                for at, end in _windows(messages, first):
                    window = messages[at:end], labels[at:end]
                    await self._publish(batch, *window, self._tail.sequence)
                    self._confirmed = self._tail.sequence + end - at
                    self._tail = _Tail(self._confirmed, True, labels[end - 1])
                return
            except _Moved:
                self._tail = await self._look()

    def _first(self, label: RowLabel) -> int:
        """Return the first row of the batch of ``label`` that the stream does not have."""
        assert self._tail is not None
        if not self._tail.is_kept:
            return 0
        where = f"{self._connection.where}, at sequence {self._tail.sequence},"
        return next_row(self._tail.label, label, where, REMEDY)

    async def _look(self) -> _Tail:
        """Read the stream's subjects and its end."""
        while True:
            stream = await self._connection.stream()
            config, last = stream["config"], int(stream["state"]["last_seq"])
            self._subjects = tuple(config.get("subjects") or ())
            if not self._options.exclusive:
                return _Tail(last, False, None)
            self._require_exclusive(config)
            if last < self._confirmed:
                raise SinkRefused(
                    f"{self._connection.where} ends at sequence {last}, but had {self._confirmed}: "
                    "it lost its last messages, or was created again; restore it, or restart the "
                    "node to continue without them"
                )
            if not stream["state"]["messages"]:
                return _Tail(last, False, None)
            found = await self._connection.message({"seq": last})
            if found is not None:
                return _Tail(last, True, _label_of(found.get("hdrs", "")))
            again = (await self._connection.stream())["state"]
            if again["last_seq"] == last and again["messages"]:
                raise SinkRefused(
                    f"the last message of {self._connection.where}, at sequence {last}, was "
                    f"deleted, so nobody knows which rows are delivered; {REMEDY}"
                )

    def _require_exclusive(self, config: Mapping[str, Any]) -> None:
        retention = config.get("retention", "limits")
        if retention != "limits":
            raise SinkRefused(
                f"{self._connection.where} has the retention {retention}, so that it deletes the "
                "messages that tell which rows are delivered; use the retention limits, or set "
                "exclusive: false"
            )
        if config.get("sources") or config.get("mirror"):
            raise SinkRefused(
                f"{self._connection.where} copies the messages of another stream, but an exclusive "
                "stream has one writer; use another stream, or set exclusive: false"
            )

    def _require_covered(self, subjects: Sequence[str] | set[str]) -> None:
        for subject in sorted(subjects):
            if not is_covered(subject, self._subjects):
                raise SinkRefused(
                    f"{self._connection.where} does not take the subject {subject}; its subjects "
                    f"are {', '.join(self._subjects) or 'none'}: add the subject to the stream, or "
                    "correct the key subject"
                )

    async def _publish(
        self,
        batch: OutputBatch,
        messages: Sequence[_Message],
        labels: Sequence[RowLabel],
        after: int | None,
    ) -> None:
        """Publish ``messages``, and wait until all are stored, directly after the sequence
        ``after`` if it is not None.

        Raises _Moved if the stream ends elsewhere.
        """
        client = self._connection.client
        window, inbox = _Window(len(messages)), client.new_inbox()
        answers = await client.subscribe(f"{inbox}.*", cb=window.take)
        try:
            for row, (one, label) in enumerate(zip(messages, labels, strict=True)):
                self._require_fit(one, label, client.max_payload)
                headers = {
                    **one.headers,
                    NAME: label.text,
                    "Nats-Msg-Id": label.text,
                    "Nats-Expected-Stream": self._options.stream,
                }
                if after is not None:
                    headers["Nats-Expected-Last-Sequence"] = str(after + row)
                    if row:
                        headers["Nats-Expected-Last-Msg-Id"] = labels[row - 1].text
                self._remaining(batch)
                await client.publish(one.subject, one.value, f"{inbox}.{row}", headers)
            await asyncio.wait_for(
                window.done.wait(), min(self._options.timeout, self._remaining(batch))
            )
        except TimeoutError:
            raise SinkUnavailable(
                f"{self._connection.where} confirmed {len(window.answers)} of {len(messages)} "
                f"messages within {self._options.timeout:g} s"
            ) from None
        finally:
            if not client.is_closed:
                await answers.unsubscribe()
        for row in range(len(messages)):
            self._require_stored(window.answers[row], None if after is None else after + row + 1)

    def _require_fit(self, message: _Message, label: RowLabel, size_max: int) -> None:
        # Our own headers take some space too.
        size = message.size + 3 * len(label.text) + 300
        if size > size_max:
            raise SinkRefused(
                f"row {label.row} of batch {label.batch} makes a message of {size} bytes, but the "
                f"servers of {self._connection.where} take {size_max}; raise their max_payload"
            )

    def _require_stored(self, answer: Mapping[str, Any], sequence: int | None) -> None:
        if "error" in answer:
            error = ApiError(answer["error"])
            if error.err_code in (_WRONG_ID, _WRONG_SEQUENCE):
                raise _Moved from error
            raise error
        if answer.get("stream") != self._options.stream:
            raise SinkRefused(
                f"a message for {self._connection.where} was stored in {answer.get('stream')}"
            )
        # A message that the server knows already has its sequence in the answer.
        if sequence is not None and answer.get("seq") != sequence:
            raise _Moved


def _windows(messages: Sequence[_Message], first: int) -> Iterator[tuple[int, int]]:
    return windows([one.size for one in messages], first, WINDOW_MESSAGES, WINDOW_BYTES)


def _reason(subject: str | None, headers: Mapping[str, str]) -> str:
    """Return the reason why no message can have ``subject`` and ``headers``, or ''."""
    if subject is None:
        return "the row has no subject"
    if not is_subject(subject):
        return f"{subject!r} is not a subject of NATS"
    for name, text in headers.items():
        if "\r" in text or "\n" in text or text != text.strip():
            return f"header {name} has a line break, or white space around it"
    return ""


def _label_of(headers: str) -> RowLabel | None:
    """The label of a stored message, whose headers are in Base64, or None if it has none."""
    for line in base64.b64decode(headers).decode(errors="replace").split("\r\n"):
        name, _, text = line.partition(":")
        if name == NAME:
            try:
                return RowLabel.parse(text.strip())
            except ValueError:
                return None
    return None
