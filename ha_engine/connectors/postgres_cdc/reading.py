"""Read the slot and the table from one offset on.

Why each change is in the journal exactly once:

1. A peek returns every transaction whose commit record begins at or after the slot's confirmed
   position, in the order of the commit records, and changes nothing. ``changes`` passes over what
   the offset already has. So the same offset gives the same rows, as often as it is opened.
2. The slot is advanced only to the ``lsn`` of an offset that the engine has committed, and never
   beyond it: this is the only call that lets the server forget anything. After a crash the
   server may go back to an earlier position, which repeats only what step 1 passes over.
3. A former active that does not know that it was replaced can advance the slot only to an offset
   that was committed in its journal, so in the journal of every later active, too. Advancing to
   an earlier position than the slot's is an error without an effect.
4. Only a journal that gave up committed records, by a forced failover or a restore, has an offset
   before the slot's position. Each ``open`` and each peek compares the two, and refuses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ha_engine.connectors.postgres_cdc.changes import SKIP, Changes, Event, Passed, Step
from ha_engine.connectors.postgres_cdc.continuity import gap_of
from ha_engine.connectors.postgres_cdc.initial import Initial, Part
from ha_engine.connectors.postgres_cdc.offset import Offset, lsn_text
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.pgoutput import BadMessage, Column, Relation, Values
from ha_engine.connectors.postgres_cdc.rows import BadRow, RowForm, UnchangedValue
from ha_engine.connectors.postgres_cdc.server import (
    Cursor,
    Log,
    Names,
    Server,
    Slot,
    SlotBusy,
    TableForm,
)
from ha_engine.connectors.postgres_cdc.values import fields_of
from ha_engine.connectors.streams import BATCH_BYTES_MAX
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import OFFSET_BYTES_MAX, Backlog, DeadLetter, SourceBatch, SourcePlace

CHANGES_MAX = 20_000
"""A peek ends behind the transaction with which it has more messages than this."""
PROGRESS_BYTES = 1 << 20
"""The amount of log without a row of the table that is worth a record in the journal."""
PAUSE_SECONDS = 0.1


class _Batch:
    """A batch in the making, after which the offset is ``offset``."""

    def __init__(self, offset: Offset, rows_max: int) -> None:
        self.offset, self._rows_max = offset, rows_max
        self.rows, self.places = list[bytes](), list[str]()
        self.letters = list[DeadLetter]()
        self._bytes = 0
        self.left_out = set[int]()
        """The transactions with a change that a later page has to contain."""
        self.last: Step | None = None

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.letters

    def has_room(self, size: int) -> bool:
        count = len(self.rows) + len(self.letters)
        return count < self._rows_max and (self.is_empty or self._bytes + size <= BATCH_BYTES_MAX)

    def add(self, row: bytes, place: str, size: int) -> None:
        self.rows.append(row)
        self.places.append(place)
        self._bytes += size

    def reject(self, place: str, reason: str, raw: bytes) -> None:
        self.letters.append(DeadLetter(place, reason, raw))
        self._bytes += len(raw)


class Reading:
    """Reads from ``offset`` on until ``close``. With ``takes`` it advances the slot.

    With ``is_unknown`` the journal has no offset yet. Then the first batch has one even if it has
    no rows, so that a loss of the slot is noticed from then on.
    """

    def __init__(
        self,
        server: Server,
        options: PostgresCdcOptions,
        place: SourcePlace,
        names: Names,
        table: TableForm,
        offset: Offset,
        *,
        takes: bool,
        is_unknown: bool = False,
    ) -> None:
        self._server, self._options, self._schema = server, options, place.schema
        self._names, self._table, self._takes = names, table, takes
        self._at, self._is_unknown = offset, is_unknown
        self._returned: Offset | None = None
        self._committed: Offset | None = None
        self._journalled_at, self._journalled_lsn = time.monotonic(), offset.lsn
        # The log was decoded up to here, and what of it is not returned yet is in the next three.
        self._decoded = self._decoded_from = 0
        self._events = deque[tuple[Event, Part | None]]()
        self._cursor: Cursor | None = None
        self._changes: Changes | None = None
        self._fetched, self._changes_max, self._is_behind = 0, CHANGES_MAX, False
        self._log: Log | None = None
        self._form_known: tuple[Relation, RowForm] | None = None
        self._pause = PAUSE_SECONDS

    def close(self) -> None:
        self._server.close()

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        """See ``plugins.SourcePlugin``."""
        until = time.monotonic() + seconds
        if self._returned is not None:  # a read after it, without an open: it is committed
            self._committed, self._returned = self._returned, None
        while True:
            busy: SlotBusy | None = None
            try:
                if (batch := self._next(rows_max)) is not None:
                    return batch
            except SlotBusy as error:
                busy = error
            left = until - time.monotonic()
            if left <= 0:
                if busy is not None:
                    raise busy
                return None
            time.sleep(min(self._pause, left))

    def _next(self, rows_max: int) -> SourceBatch | None:
        while True:
            must_wait = False
            if self._cursor is None and not self._events:
                if self._wants_page and (batch := self._page(rows_max)) is not None:
                    return batch
                must_wait = self._wants_page
                if not self._peek():
                    return self._progress(must=False)
            if (batch := self._batch(rows_max)) is not None:
                return batch
            if not self._is_behind and (must_wait or not self._wants_page):
                return None

    # -- the slot ----------------------------------------------------------------------------------

    def _peek(self) -> bool:
        """Decode the log after the last peek. Returns False if there is none."""
        self._advance()
        log = self._log = self._server.log()
        if log.flushed <= self._decoded:
            return False
        began, at, names = time.monotonic(), self._at, self._names
        cursor = self._server.peek(names.slot, names.publication, log.flushed, self._changes_max)
        # If the slot, the publication and the table are the right ones after the peek, then they
        # were in the peek. The slot cannot have been beyond the offset either, since it never goes
        # back, except to what a crash left of it.
        self._require_slot()
        *_, kinds = self._server.published(names.publication, names.schema, names.table)
        if not kinds >= self._options.operations:
            raise SourceUnavailable(
                f"the parameters of the publication {names.publication!r} were changed; the node "
                "opens the source again, which says what is missing"
            )
        self._cursor, self._fetched, self._is_behind = cursor, 0, False
        self._decoded_from, self._decoded = at.lsn, log.flushed
        table = self._table
        self._changes = Changes(table.oid, table.key_names, at.lsn, at.inside)
        # Half of the time at most is for decoding, since each peek begins at the slot's position.
        self._pause = max(PAUSE_SECONDS, time.monotonic() - began)
        return True

    def _advance(self) -> None:
        if self._committed is not None and self._takes:
            lsn = self._committed.lsn
            if self._require_slot().confirmed < lsn:
                self._server.advance(self._names.slot, lsn)
        self._committed = None

    def _require_slot(self) -> Slot:
        """Return the slot. Raises SourceRefused unless it has everything after the offset."""
        present = self._server.present(self._names)
        if gap := gap_of(self._server, self._names, present, self._at):
            raise gap.refusal(present.slot)
        assert present.slot is not None, "without a slot there is a gap"
        return present.slot

    # -- changes -----------------------------------------------------------------------------------

    def _batch(self, rows_max: int) -> SourceBatch | None:
        batch, has_ended = _Batch(self._at, rows_max), False
        while not has_ended:
            if not self._events:
                has_ended = not self._fetch()
            elif not self._took(batch):
                break
        hit_limit = has_ended and self._fetched >= self._changes_max
        if has_ended:
            self._end_cursor(batch, hit_limit)
        self._at = self._with_hidden(batch)
        if batch.is_empty:
            return self._progress(must=hit_limit)
        return self._returning(batch.rows, batch.places, batch.letters, batch.last)

    def _fetch(self) -> bool:
        """Decode the next messages of the cursor. Returns False at its end."""
        if self._cursor is None:
            return False
        assert self._changes is not None, "a cursor has changes"
        if not (rows := self._cursor.fetch()):
            return False
        self._fetched += len(rows)
        events = list[Event]()
        for (data,) in rows:
            try:
                events.extend(self._changes.events(bytes(data)))
            except BadMessage as bad:
                raise SourceRefused(
                    f"the server {self._server.where} sent what the source cannot decode: {bad}; "
                    "report this with the server's version"
                ) from bad
        parts = self._parts(events)
        self._events.extend(zip(events, parts, strict=True))
        return True

    def _end_cursor(self, batch: _Batch, hit_limit: bool) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = self._changes = None
        if hit_limit:
            # If the peek had only what the journal has, the next one must come further. The former
            # active may have ended before it advanced the slot.
            self._is_behind = batch.offset.lsn <= self._decoded_from
            self._changes_max = 2 * self._changes_max if self._is_behind else CHANGES_MAX
            self._decoded = batch.offset.lsn
        elif batch.offset.inside is None:
            # Nothing of the table is between the last transaction and the end of the peek.
            batch.offset = batch.offset.with_commit(self._decoded)
        else:
            inside = batch.offset.inside
            raise SourceRefused(
                f"the rest of transaction {inside.xid}, which was committed at "
                f"{lsn_text(inside.commit_lsn)}, is not in the slot {self._names.slot!r}; {SKIP}"
            )

    def _took(self, batch: _Batch) -> bool:
        """Like ``_take``, but a refused event ends a batch that has rows, for the journal to get
        them. The next batch refuses the event."""
        try:
            return self._take(batch)
        except SourceRefused:
            if batch.is_empty:
                raise
            return False

    def _take(self, batch: _Batch) -> bool:
        """Move the next event into ``batch``. Returns False if it has no room."""
        event, part = self._events[0]
        match event:
            case Passed(lsn):
                batch.offset = batch.offset.with_commit(lsn)
            case Step():
                if not batch.has_room(event.size):
                    return False
                self._take_step(batch, event, part)
        self._events.popleft()
        return True

    def _take_step(self, batch: _Batch, step: Step, part: Part | None) -> None:
        offset, xid, left_out = batch.offset, step.transaction.xid, False
        is_wanted = step.operation in self._options.operations
        if (initial := offset.initial) is not None:
            if step.operation == "truncate":
                if is_wanted:
                    offset = replace(offset, initial=initial.restarted(xid))
                    left_out = True
            elif initial.contains(xid, self._part(initial, part)):
                is_wanted, left_out = False, True
        if is_wanted:
            self._write(batch, step)
        if left_out:
            batch.left_out.add(xid)
        batch.offset = replace(offset, inside=step.inside)

    def _write(self, batch: _Batch, step: Step) -> None:
        transaction, values = step.transaction, step.values
        place = (
            f"{self._names.quoted_table}, {step.operation} {(step.number - 1) // 2 + 1} of the "
            f"transaction {transaction.xid} at {lsn_text(transaction.commit_lsn)}"
        )
        try:
            form = self._form(step.relation, self._present_columns)
            row = form.row(
                step.operation, values, step.old, transaction.commit_lsn, transaction.committed_at
            )
            batch.add(row, place, step.size)
        except BadRow as bad:
            batch.reject(place, str(bad), repr(values).encode()[:4096])
        except UnchangedValue as unchanged:
            if self._options.unchanged == "refuse":
                raise SourceRefused(
                    f"{place}: {unchanged}; set unchanged_column, or unchanged: dead_letter, and "
                    f"for later updates run ALTER TABLE {self._names.quoted_table} REPLICA "
                    "IDENTITY FULL (of each partition, if the table has some)"
                ) from None
            batch.reject(place, str(unchanged), repr(values).encode()[:4096])
        batch.last = step

    def _form(self, relation: Relation, present: Callable[[], Collection[str]]) -> RowForm:
        if self._form_known is None or self._form_known[0] is not relation:
            types = self._server.type_forms([column.type_oid for column in relation.columns])
            form = RowForm(self._options, self._schema, relation, types, present)
            self._form_known = relation, form
        return self._form_known[1]

    def _present_table(self) -> TableForm | None:
        names = self._names
        return self._server.table(names.publication, names.schema, names.table)

    def _present_columns(self) -> set[str]:
        table = self._present_table()
        return {name for name, _ in table.columns} if table else set()

    # -- the initial read --------------------------------------------------------------------------

    @property
    def _wants_page(self) -> bool:
        initial = self._at.initial
        return (
            initial is not None
            and initial.page is None
            and not initial.is_whole
            and self._at.inside is None
        )

    def _page(self, rows_max: int) -> SourceBatch | None:
        """Read the next page, or return None if it has no rows or may not be read now."""
        initial, table = self._at.initial, self._table
        assert initial is not None, "pages are for an initial read"
        page = self._server.page(
            self._names.quoted_table, table, initial.to, initial.may_read, rows_max
        )
        if page is None:
            return None
        if self._takes and self._server.log().flushed < page.through:
            # What the page has seen must not be lost by a crash of the server, and must be decoded
            # before the next page.
            self._server.flush()
        # The page is of the right table if its name has the right oid afterwards, and the columns
        # and the key that the source knows.
        self._require_slot()
        if self._present_table() != table:
            raise SourceUnavailable(
                f"the table {self._names.quoted_table} was altered; the node opens the source again"
            )
        relation = self._present_relation()
        names = [column.name for column in relation.columns]
        form = self._form(relation, lambda: names)
        places = [names.index(name) for name in table.key_names]
        rows, keys, letters, row_places = list[bytes](), initial.to, list[DeadLetter](), list[str]()
        for text in page.rows:
            fields = fields_of(text)
            key = tuple(fields[place] or "" for place in places)
            where = f"{self._names.quoted_table}, row {', '.join(key)}"
            values: Values = tuple(None if one is None else one.encode() for one in fields)
            try:
                rows.append(form.row("read", values, None, self._at.lsn, page.now))
                row_places.append(where)
            except BadRow as bad:
                letters.append(DeadLetter(where, str(bad), text.encode()[:4096]))
            keys = key
        following = initial.with_page(keys, page.is_last, page.snapshot, page.through)
        # If nothing was written since the last peek, the log is already read through the page.
        self._at = replace(self._at, initial=following).with_commit(self._at.lsn)
        return self._returning(rows, row_places, letters, None) if page.rows else None

    def _present_relation(self) -> Relation:
        table, key = self._table, self._table.key_names
        columns = tuple(Column(name, oid, name in key) for name, oid in table.columns)
        names = self._names
        return Relation(table.oid, names.schema, names.table, table.replica_identity, columns)

    def _parts(self, events: Sequence[Event]) -> list[Part | None]:
        """The part of the table to which each step's key belongs, during an initial read."""
        initial = self._at.initial
        if initial is None or not initial.has_bounds:
            return [None] * len(events)
        found, keyed = list[Part | None]([None] * len(events)), list[int]()
        keys = []
        for number, event in enumerate(events):
            if isinstance(event, Step) and event.operation != "truncate":
                key = event.key(self._table.key_names)
                if key is None:
                    raise SourceRefused(
                        f"the log of {self._names.quoted_table} lacks a column of its primary key; "
                        "run ALTER TABLE … REPLICA IDENTITY DEFAULT, or set initial: false"
                    )
                keyed.append(number)
                keys.append(key)
        if keys:
            parts = self._server.parts(self._table, keys, initial)
            for number, part in zip(keyed, parts, strict=True):
                found[number] = part
        return found

    @staticmethod
    def _part(initial: Initial, part: Part | None) -> Part:
        """The part of a step's key now. It was compared with the pages before the batch, after
        which there may have been a truncation or the end of the catch-up with a page."""
        if initial.to is None and not initial.is_whole:
            return Part.LATER
        if part is Part.LAST and initial.page is None:
            return Part.EARLIER
        return Part.LAST if part is None else part

    def _with_hidden(self, batch: _Batch) -> Offset:
        """The offset of ``batch``, with the left out transactions that no snapshot sees yet."""
        offset, initial = batch.offset, batch.offset.initial
        if initial is None or not (xids := initial.hidden | batch.left_out):
            return offset
        snapshot = self._server.snapshot()
        hidden = (xid for xid in xids if not snapshot.sees(xid))
        return replace(offset, initial=initial.with_hidden(hidden))

    # -- batches -----------------------------------------------------------------------------------

    def _progress(self, *, must: bool) -> SourceBatch | None:
        """A batch without rows, if the journal's offset is far behind, or ``must`` move for the
        next peek to come to other changes."""
        passed = self._at.lsn - self._journalled_lsn
        waited = time.monotonic() - self._journalled_at
        is_due = waited >= self._options.heartbeat and passed >= PROGRESS_BYTES
        if self._is_unknown or (passed and (must or is_due)):
            return self._returning((), (), (), None)
        return None

    def _returning(
        self,
        rows: Sequence[bytes],
        places: Sequence[str],
        letters: Sequence[DeadLetter],
        last: Step | None,
    ) -> SourceBatch:
        text = self._at.text
        if len(text.encode()) > OFFSET_BYTES_MAX:
            raise SourceRefused(
                f"the offset of the source in {self._names.quoted_table} has more than "
                f"{OFFSET_BYTES_MAX} bytes: its primary key is too long, or too many transactions "
                "run; set initial: false"
            )
        self._returned, self._is_unknown = self._at, False
        self._journalled_at, self._journalled_lsn = time.monotonic(), self._at.lsn
        return SourceBatch(
            text, tuple(rows), tuple(letters), list(places).__getitem__, self._backlog(last)
        )

    def _backlog(self, last: Step | None) -> Backlog | None:
        if self._log is None:
            return None
        waits = bool(self._events) or self._cursor is not None
        seconds = None
        if waits and last is not None:
            seconds = max(0.0, (self._log.now - last.transaction.committed_at).total_seconds())
        return Backlog(None, max(0, self._log.flushed - self._at.lsn), seconds)
