"""The source kind ``s3`` reads each object below a URL once, in the order of the keys.

A store lists keys in their order, but not the order in which objects appear. An object whose key
sorts before the last one read may still appear: its writer was slow, or keys do not grow. The time
of an object is no help, because an upload of several parts has the time of its beginning. So:

1. The offset has the greatest key that was read, the *frontier*, and a ledger of all objects up to
   it that were read and still exist. The source lists only behind the frontier, mostly.
2. From time to time, and first of all after ``open``, the source lists the objects up to the
   frontier too. An object that is not in the ledger was not read, and is read now.
3. The ledger has a fixed size. While an instance is open, it knows each entry of the ledger. After
   ``open`` it learns them: the difference of the listing and the ledger names the objects that
   appeared, disappeared or changed since the offset was journalled. If these are too many to be
   named, the source refuses.
4. Writers with random keys may create many objects while no instance is open. So the offset also
   has the last object, by time, that was read up to the key ``looked``, the frontier of the last
   such listing. Objects that are found late are read in the order of their times. So an object up
   to that key with a greater time is in no ledger, and is no part of the difference, unless its
   writer wrote it again with the same content. This needs no clock.

So an object that exists at a listing is in the ledger or will be read. An object that disappears
leaves the ledger, so deletions by a lifecycle rule do no harm.

The offset names the object that is partly read, its version, and how many bytes are read. Each
request asks for this version, so an object cannot change while it is read.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.s3.ledger import ENTRIES_MAX, Entry, Ledger
from ha_engine.connectors.s3.reader import (
    MESSAGE_BYTES_MAX,
    Compression,
    Damaged,
    ObjectReader,
    Part,
)
from ha_engine.connectors.s3.store import (
    PAGE_OBJECTS,
    ObjectChanged,
    ObjectGone,
    ObjectMeta,
    Store,
    StoreOptions,
)
from ha_engine.connectors.streams import BATCH_BYTES_MAX, peeked
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Backlog, DeadLetter, Messages, SourceBatch, SourcePlace

LOOKING_PART_MAX = 0.1
"""Listing all objects takes at most this fraction of the time."""
REMOVED_MAX = ENTRIES_MAX // 4
"""After so many deletions the offset is journalled, so that its ledger stays near the store."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOM = b"\xef\xbb\xbf"
_ATTRIBUTES: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "line": pa.int64(),
    "etag": pa.string(),
    "size": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class S3SourceOptions(StoreOptions):
    """The options of the source kind ``s3``, besides those of ``StoreOptions``.

    - ``pattern``: only objects whose key, relative to ``url``, matches. ``*`` matches any text,
      even with slashes.
    - ``message``: each ``line`` of an object is a message, or the whole ``object`` is one.
    - ``skip_lines``: so many lines at the beginning of each object are no messages.
    - ``compression``: of the objects; ``auto`` goes by the end of each key.
    - ``start_after``: without an offset, begin with the objects whose keys are greater.
    - ``poll``: how often to look for keys behind the last one read.
    - ``look_back``: how often to look for objects that appeared under a smaller key.
    - ``skip_lost``: continue when an object was deleted before it was read to its end. A dead
      letter names the object.
    - ``reread_changed``: read an object again from its start when its content has changed.
    """

    pattern: Annotated[str, Field(min_length=1)] = "*"
    message: Literal["line", "object"] = "line"
    skip_lines: Annotated[int, Field(ge=0, le=1000)] = 0
    compression: Compression = "auto"
    start_after: str = ""
    poll: Annotated[Duration, Field(gt=0)] = 1.0
    look_back: Annotated[Duration, Field(gt=0)] = 30.0
    skip_lost: bool = False
    reread_changed: bool = False

    @model_validator(mode="after")
    def _lines(self) -> S3SourceOptions:
        if self.skip_lines and self.message == "object":
            raise ValueError("skip_lines needs message: line")
        return self


@dataclass(frozen=True, slots=True)
class Partly:
    """The first ``bytes`` decompressed bytes and ``lines`` lines of an object are read.

    ``time`` is that of a listing, in microseconds since 1970: other answers may only have seconds.
    """

    key: str
    version: str
    time: int
    bytes: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The offset of the source.

    Keys up to ``after`` do not concern the source. The objects with keys up to ``frontier`` that
    are in ``ledger`` are read. Those up to ``looked`` that are read have at most the time and the
    key ``newest``. ``partly`` is the object that is being read.
    """

    url: str
    after: str
    frontier: str
    ledger: str
    looked: str
    newest: tuple[int, str] = (0, "")
    partly: Partly | None = None

    @classmethod
    def start(cls, url: str, after: str) -> Position:
        return cls(url, after, after, Ledger().text, after)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError if ``text`` is no offset of this kind of source."""
        try:
            found = json.loads(text)
            partly = found.pop("partly")
            time, key = found.pop("newest")
            position = cls(
                **found,
                newest=(int(time), str(key)),
                partly=None if partly is None else Partly(**partly),
            )
            Ledger.parse(position.ledger)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from error
        return position

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


@dataclass
class _Gathered:
    """The messages of a batch, with the object and the line of each. ``passed`` bytes of objects
    are read for them."""

    rows_max: int
    values: list[bytes | None] = field(default_factory=list)
    places: list[tuple[ObjectMeta, int]] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    size: int = 0
    passed: int = 0

    @property
    def is_long(self) -> bool:
        """Whether so much is read that the offset must be journalled even without a message."""
        return self.passed > 2 * BATCH_BYTES_MAX

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.letters

    def has_room(self, size: int) -> bool:
        if self.is_long or len(self.values) + len(self.letters) >= self.rows_max:
            return False
        return self.is_empty or self.size + size <= BATCH_BYTES_MAX

    def add(self, value: bytes, meta: ObjectMeta, line: int) -> None:
        self.values.append(value)
        self.places.append((meta, line))
        self.size += len(value)

    def reject(self, place: str, reason: str, raw: bytes = b"") -> None:
        self.letters.append(DeadLetter(place, reason, raw))
        self.size += len(raw)


class S3Source:
    """Implements ``plugins.SourcePlugin``."""

    Options = S3SourceOptions
    guarantee: ClassVar[str] = "exactly once: each object is read once, by its key and version"
    attributes: ClassVar[Mapping[str, pa.DataType]] = _ATTRIBUTES

    def __init__(self, options: S3SourceOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        self._url = options.url.rstrip("/")
        self._store = Store(options, SourceRefused, SourceUnavailable)
        self._reset(Position.start(self._url, options.start_after))

    def _reset(self, position: Position) -> None:
        self._after, self._frontier = position.after, position.frontier
        self._looked, self._newest = position.looked, position.newest
        self._partly, self._ledger = position.partly, Ledger.parse(position.ledger)
        # The last object that had another version than in the listing.
        self._unlike: Partly | None = None
        # The version of each entry of the ledger, by key; None until a listing tells them.
        self._known: dict[int, int] | None = None
        # Objects behind the frontier by key, and objects that appeared before it by time.
        self._ahead, self._late = deque[ObjectMeta](), deque[ObjectMeta]()
        self._is_page_full = False
        self._reader: ObjectReader | None = None
        self._next_poll = self._next_look = float("-inf")
        # Objects that left the ledger since the last batch.
        self._removed = 0

    def check(self) -> None:
        """List the objects, and read a byte of the first one."""
        try:
            self._store.open()
            first = next(self._store.listed(self._options.start_after), None)
            if first is not None and first.size:
                self._store.piece(first, 0, 1)
        except (ObjectGone, ObjectChanged):
            pass  # the store answers
        finally:
            self._store.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows after ``offset``."""
        return peeked(self, offset, rows_max, seconds)

    def open(self, offset: str | None) -> None:
        self._store.open()
        if offset is None:
            self._reset(Position.start(self._url, self._options.start_after))
        else:
            self._reset(self._parsed(offset))

    def _parsed(self, offset: str) -> Position:
        try:
            position = Position.parse(offset)
        except ValueError as error:
            raise self._other_offset("is of another kind of source") from error
        if position.url != self._url:
            raise self._other_offset(f"belongs to {position.url}")
        return position

    def _other_offset(self, reason: str) -> SourceRefused:
        return SourceRefused(
            f"the offset of source {self._place.source} {reason}, not to {self._url}; give the "
            "source another name to read all objects from the first one"
        )

    def close(self) -> None:
        self._reader = None
        self._store.close()

    # -- reading -----------------------------------------------------------------------------------

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        until = time.monotonic() + seconds
        while True:
            gathered = _Gathered(rows_max)
            self._gather(gathered, until)
            if not gathered.is_empty or gathered.is_long or self._removed > REMOVED_MAX:
                return self._batch(gathered)
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, max(0.0, self._next_poll - time.monotonic())))

    def _gather(self, gathered: _Gathered, until: float) -> None:
        """Take messages of one object after the other. A failure after the first message only ends
        the batch, and the next read finds it again."""
        try:
            self._look_back(gathered)
            while self._read_some(gathered) and time.monotonic() < until:
                pass
        except (SourceRefused, SourceUnavailable):
            self._reader = None
            if gathered.is_empty:
                raise

    def _read_some(self, gathered: _Gathered) -> bool:
        """Take messages of one object, and return whether there may be more."""
        try:
            reader = self._reader or self._begin()
            if reader is None:
                return False
            while (part := reader.next()) is not None:
                if not gathered.has_room(part.size):
                    return False
                self._take(gathered, reader, part)
            self._finish()
        except Damaged as error:
            self._damaged(gathered, error)
        except ObjectGone:
            self._lost(gathered)
        except ObjectChanged:
            self._changed()
        return gathered.has_room(0)

    def _take(self, gathered: _Gathered, reader: ObjectReader, part: Part) -> None:
        """Take the message ``part``. The position and the batch move together."""
        partly = self._partly
        assert partly is not None
        is_line = self._options.message == "line"
        value = part.value if partly.bytes else part.value.removeprefix(_BOM)
        if not part.is_whole:
            reason = f"the message is longer than {MESSAGE_BYTES_MAX} bytes"
            gathered.reject(_place(partly.key, partly.lines + 1), reason, part.value)
        elif not is_line:
            gathered.add(value, reader.meta, 0)
        elif value.strip() and partly.lines >= self._options.skip_lines:
            gathered.add(value, reader.meta, partly.lines + 1)
        gathered.passed += part.size
        size, lines = partly.bytes + part.size, partly.lines + is_line
        self._partly = Partly(partly.key, partly.version, partly.time, size, lines)
        reader.take()

    # -- choice of the object ----------------------------------------------------------------------

    def _begin(self) -> ObjectReader | None:
        """Open the object that is partly read, or the next one. Return None if there is none."""
        partly, options = self._partly, self._options
        if partly is None:
            meta = self._next()
            if meta is None:
                return None
            partly = self._partly = Partly(meta.key, meta.version, meta.order[0])
        else:
            modified = _EPOCH + timedelta(microseconds=partly.time)
            meta = replace(self._store.meta(partly.key, partly.version), modified=modified)
        is_whole = options.message == "object"
        self._reader = ObjectReader(
            self._store, meta, partly.bytes, options.compression, whole=is_whole
        )
        return self._reader

    def _next(self) -> ObjectMeta | None:
        if self._late:
            return self._late.popleft()
        now = time.monotonic()
        if not self._ahead and now >= self._next_poll:
            wanted = filter(self._is_wanted, self._store.listed(self._frontier))
            self._ahead = deque(islice(wanted, PAGE_OBJECTS))
            self._is_page_full = len(self._ahead) == PAGE_OBJECTS
            # A listing may only have keys that do not match. It takes at most half of the time.
            ended = time.monotonic()
            following = max(now + self._options.poll, ended + (ended - now))
            self._next_poll = float("-inf") if self._is_page_full else following
        return self._ahead.popleft() if self._ahead else None

    def _is_wanted(self, meta: ObjectMeta) -> bool:
        return meta.size > 0 and fnmatchcase(meta.key, self._options.pattern)

    def _finish(self) -> None:
        """Move behind the object at hand."""
        partly = self._partly
        assert partly is not None
        assert self._known is not None
        entry = Entry.of(partly.key, partly.version)
        self._known[entry.key] = entry.version
        self._ledger.add(entry)
        self._frontier = max(self._frontier, partly.key)
        if partly.key <= self._looked:
            self._newest = max(self._newest, (partly.time, partly.key))
        self._partly = self._reader = None

    def _damaged(self, gathered: _Gathered, error: Damaged) -> None:
        partly = self._partly
        assert partly is not None
        reason = (
            f"the rest of the object, after {partly.bytes} bytes, cannot be decompressed: {error}"
        )
        gathered.reject(_place(partly.key, partly.lines + 1), reason)
        self._finish()

    def _lost(self, gathered: _Gathered) -> None:
        """The object at hand is deleted."""
        partly = self._partly
        assert partly is not None
        reason = f"was deleted after {partly.bytes} of its bytes were read"
        if partly.bytes and not self._options.skip_lost:
            raise SourceRefused(
                f"{partly.key} in {self._store.where} {reason}; restore this version, or set "
                "skip_lost: true to continue without the rest"
            )
        gathered.reject(partly.key, f"the object {reason}")
        self._partly = self._reader = None

    def _changed(self) -> None:
        """The object at hand has another content."""
        partly = self._partly
        assert partly is not None
        if partly.bytes and not self._options.reread_changed:
            raise self._refusal_of_change(
                partly.key, f"after {partly.bytes} of its bytes were read"
            )
        if partly == self._unlike:
            raise SourceUnavailable(
                f"{partly.key} in {self._store.where} has another ETag than in the listing, again "
                "and again; let no proxy or cache change the answers of the store"
            )
        # The next listings have the new version.
        self._unlike, self._partly, self._reader = partly, None, None
        self._ahead.clear()
        self._next_poll = self._next_look = float("-inf")

    def _refusal_of_change(self, key: str, when: str) -> SourceRefused:
        return SourceRefused(
            f"{key} in {self._store.where} was changed {when}; restore its content, and let its "
            "writer create another object instead; or set reread_changed: true to read the new "
            "content from its start, which repeats the rows that it has in common with the old one"
        )

    # -- objects up to the frontier ----------------------------------------------------------------

    def _look_back(self, gathered: _Gathered) -> None:
        """From time to time, find the objects up to the frontier that are not read."""
        if self._known is None:
            self._known = self._recovered(gathered)
        began = time.monotonic()
        if self._frontier == self._after or began < self._next_look:
            return
        late, there, newest = list[ObjectMeta](), set[int](), (0, "")
        for meta, entry in self._up_to_frontier():
            version = self._known.get(entry.key)
            if version is not None and version != entry.version:
                if not self._options.reread_changed:
                    raise self._refusal_of_change(meta.key, "after it was read")
                self._forget(entry.key)
                version = None
            if version is not None:
                there.add(entry.key)
                newest = max(newest, meta.order)
            elif self._partly is None or self._partly.key != meta.key:
                late.append(meta)
        for key in self._known.keys() - there:
            self._forget(key)
        self._late = deque(sorted(late, key=lambda meta: meta.order))
        self._looked, self._newest = self._frontier, newest
        took = time.monotonic() - began
        self._next_look = began + max(self._options.look_back, took / LOOKING_PART_MAX)

    def _forget(self, key: int) -> None:
        """Take an object that is gone out of the ledger."""
        assert self._known is not None
        self._ledger.remove(Entry(key, self._known.pop(key)))
        self._removed += 1

    def _up_to_frontier(self) -> Iterator[tuple[ObjectMeta, Entry]]:
        for meta in self._store.listed(self._after):
            if meta.key > self._frontier:
                return
            if self._is_wanted(meta):
                yield meta, Entry.of(meta.key, meta.version)

    def _recovered(self, gathered: _Gathered) -> dict[int, int]:
        """Return the entries of the ledger, which the listing and the ledger together tell."""
        if self._frontier == self._after:
            return {}
        key = None if self._partly is None else self._partly.key
        listed, greater = list[Entry](), list[Entry]()
        for meta, entry in self._up_to_frontier():
            if meta.key != key:
                is_new = meta.key <= self._looked and meta.order > self._newest
                (greater if is_new else listed).append(entry)
        # An object that was written again with the same content has a greater time, and is read.
        for entries in (listed, listed + greater):
            difference = Ledger(entries).minus(self._ledger)
            if difference is not None:
                return dict(set(entries) - difference.first | difference.second)
        reason = (
            f"too many objects up to {self._frontier} were created or deleted since the last read "
            f"for the source to tell which of the {len(listed)} objects are not read yet"
        )
        if not self._options.skip_lost:
            raise SourceRefused(
                f"{self._store.where}: {reason}; give the source another name to read all objects "
                "again, or set skip_lost: true to take them all as read"
            )
        gathered.reject(self._url, f"{reason}; they are taken as read")
        self._ledger = Ledger(listed)
        return dict(listed)

    # -- a batch -----------------------------------------------------------------------------------

    def _batch(self, gathered: _Gathered) -> SourceBatch:
        self._removed = 0
        places = gathered.places
        attributes = {
            name: [_attribute(name, *place) for place in places] for name in self._place.attributes
        }
        return SourceBatch(
            self._position.text,
            Messages(gathered.values, attributes),
            gathered.letters,
            lambda row: _place(places[row][0].key, places[row][1]),
            self._backlog(),
        )

    @property
    def _position(self) -> Position:
        return Position(
            self._url,
            self._after,
            self._frontier,
            self._ledger.text,
            self._looked,
            self._newest,
            self._partly,
        )

    def _backlog(self) -> Backlog:
        unread = [*self._late, *self._ahead]
        size = sum(one.size for one in unread)
        if self._reader is not None and self._partly is not None:
            unread.insert(0, self._reader.meta)
            size += max(0, self._reader.meta.size - self._partly.bytes)
        if not unread:
            return Backlog(bytes=None if self._is_page_full else 0, seconds=0.0)
        age = (datetime.now(UTC) - unread[0].modified).total_seconds()
        return Backlog(bytes=None if self._is_page_full else size, seconds=max(0.0, age))


def _place(key: str, line: int) -> str:
    return f"{key}:{line}" if line else key


def _attribute(name: str, meta: ObjectMeta, line: int) -> Any:
    match name:
        case "key":
            return meta.key
        case "line":
            return line or None
        case "etag":
            return meta.version.strip('"')
        case "size":
            return meta.size
        case "timestamp":
            return meta.modified
    raise KeyError(name)
