"""The plug-in ``postgres_cdc``: check the server, the publication and the slot, and open the
source at an offset."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel

from ha_engine.connectors.postgres_cdc.initial import Initial
from ha_engine.connectors.postgres_cdc.offset import Offset, lsn_of, lsn_text
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.reading import Names, Reading
from ha_engine.connectors.postgres_cdc.rows import require_fit
from ha_engine.connectors.postgres_cdc.server import LOST, Server, Slot, TableForm, quoted
from ha_engine.errors import EngineError, SourceRefused, SourceUnavailable
from ha_engine.plugins import SourceBatch, SourcePlace

_NAME_CHARACTERS = 50


class PostgresCdcSource:
    """Implements ``plugins.SourcePlugin``."""

    Options: ClassVar[type[BaseModel]] = PostgresCdcOptions
    guarantee: ClassVar[str] = (
        "exactly once, as long as the replication slot keeps the log after the journal's offset"
    )

    def __init__(self, options: PostgresCdcOptions, place: SourcePlace) -> None:
        self._options, self._place = options, place
        slot = options.slot or _name_of(place)
        self._names = Names(options.table_schema, options.table, slot, options.publication or slot)
        self._reading: Reading | None = None

    def open(self, offset: str | None) -> None:
        self.close()
        self._reading = self._opened(offset)

    def read(self, rows_max: int, seconds: float) -> SourceBatch | None:
        if self._reading is None:
            raise SourceUnavailable("the source is closed; the node opens it again")
        return self._reading.read(rows_max, seconds)

    def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    # -- commands ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what ``open`` and ``read`` need, and create nothing."""
        server = self._server()
        try:
            self._require_server(server)
            exists = server.publication(self._names.publication)
            if exists is not None or not self._options.create:
                self._table(server)
            may_replicate, may_select = server.may(self._names.schema, self._names.table)
            if not may_replicate:
                raise SourceRefused(
                    f"the user {self._options.user!r} may not use replication slots at "
                    f"{server.where}; run ALTER ROLE {quoted(self._options.user)} REPLICATION"
                )
            if self._options.initial and not may_select:
                raise SourceRefused(
                    f"the user {self._options.user!r} may not read {self._names.quoted_table} for "
                    f"the initial read; run GRANT SELECT ON {self._names.quoted_table} TO "
                    f"{quoted(self._options.user)}"
                )
            self._checked_slot(server)
        finally:
            server.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows. The slot is in use for a moment, for which a reader waits."""
        server = self._server()
        try:
            self._require_server(server)
            table = self._table(server)
            if (slot := self._checked_slot(server)) is None:
                return None
            start = self._start(server, slot, offset)
            reading = Reading(
                server, self._options, self._place, self._names, table, start, takes=False
            )
            return reading.read(rows_max, seconds)
        finally:
            server.close()

    # -- opening -----------------------------------------------------------------------------------

    def _opened(self, offset: str | None) -> Reading:
        server = self._server()
        try:
            self._require_server(server)
            if self._options.create and server.publication(self._names.publication) is None:
                self._create_publication(server)
            table = self._table(server)
            slot = self._checked_slot(server)
            is_new = slot is None
            if slot is None:
                slot = self._created_slot(server, offset)
            start = self._start(server, slot, offset)
            if start.initial and offset is None and not is_new:
                # The slot may have passed transactions that no snapshot sees yet.
                start = _hiding(start, server.unfinished())
            return Reading(
                server, self._options, self._place, self._names, table, start, takes=True
            )
        except BaseException:
            server.close()
            raise

    def _server(self) -> Server:
        place = self._place
        return Server(self._options, f"ha-engine {place.group}/{place.stream}/{place.source}")

    def _require_server(self, server: Server) -> None:
        require_fit(self._options, self._place.schema)
        server.require_fit()

    def _create_publication(self, server: Server) -> None:
        names = self._names
        kinds = ", ".join(sorted(self._options.operations))
        try:
            server.create_publication(names.publication, names.schema, names.table, kinds)
        except EngineError as error:
            if server.publication(names.publication) is None:
                raise SourceRefused(
                    f"the publication {names.publication!r} cannot be created: {error}; let the "
                    f"table's owner run CREATE PUBLICATION {quoted(names.publication)} FOR TABLE "
                    f"{names.quoted_table}"
                ) from error

    def _table(self, server: Server) -> TableForm:
        """The published form of the table. Raises SourceRefused if it lacks what the source
        needs."""
        names, options = self._names, self._options
        if server.publication(names.publication) is None:
            raise SourceRefused(
                f"there is no publication {names.publication!r} at {server.where}; run CREATE "
                f"PUBLICATION {quoted(names.publication)} FOR TABLE {names.quoted_table}, or set "
                "create: true"
            )
        table = server.table(names.publication, names.schema, names.table)
        if table is None:
            raise SourceRefused(
                f"there is no table {names.quoted_table} at {server.where}; check table and "
                "table_schema"
            )
        if not table.published:
            raise SourceRefused(
                f"the publication {names.publication!r} does not have the table "
                f"{names.quoted_table}; run ALTER PUBLICATION {quoted(names.publication)} ADD "
                f"TABLE {names.quoted_table}, with publish_via_partition_root if it is partitioned"
            )
        if missing := sorted(options.operations - table.published):
            raise SourceRefused(
                f"the publication {names.publication!r} does not publish {', '.join(missing)}; "
                "change its parameter publish, or the source's operations"
            )
        if options.initial:
            self._require_key(table)
        return table

    def _require_key(self, table: TableForm) -> None:
        where = self._names.quoted_table
        if not table.key:
            raise SourceRefused(
                f"the table {where} has no primary key, by which the initial read orders its rows; "
                "add one, or set initial: false"
            )
        published = {name for name, _ in table.columns}
        if not published.issuperset(table.key_names):
            raise SourceRefused(
                f"the publication {self._names.publication!r} leaves out a column of the primary "
                f"key of {where}, which the initial read needs; publish it, or set initial: false"
            )
        if table.replica_identity == "i":
            raise SourceRefused(
                f"the replica identity of {where} is an index other than the primary key, so the "
                "initial read cannot order its changes; run "
                f"ALTER TABLE {where} REPLICA IDENTITY DEFAULT, or set initial: false"
            )

    # -- the slot ----------------------------------------------------------------------------------

    def _checked_slot(self, server: Server) -> Slot | None:
        """The slot, or None if there is none. Raises SourceRefused if it is of no use."""
        name = self._names.slot
        slot = server.slot(name)
        if slot is None:
            return None
        if slot.plugin != "pgoutput" or slot.database != self._options.database:
            raise SourceRefused(
                f"the replication slot {name!r} at {server.where} is one of "
                f"{slot.plugin or 'physical replication'} for the database {slot.database}; set "
                "slot to another name"
            )
        if slot.is_lost:
            raise SourceRefused(
                f"the server {server.where} has removed log that the replication slot {name!r} "
                f"needs (max_slot_wal_keep_size), so {LOST}"
            )
        return slot

    def _created_slot(self, server: Server, offset: str | None) -> Slot:
        name = self._names.slot
        if offset is not None:
            raise SourceRefused(
                f"there is no replication slot {name!r} at {server.where}, and the source's "
                f"offset is {Offset.parse(offset).text}: the slot was dropped, or a failover of "
                f"the server did not keep it; {LOST}, after SELECT "
                f"pg_create_logical_replication_slot('{name}', 'pgoutput')"
            )
        try:
            server.create_slot(name)
        except EngineError:
            if server.slot(name) is None:
                raise
        if (slot := self._checked_slot(server)) is None:
            raise SourceUnavailable(f"the replication slot {name!r} vanished after its creation")
        return slot

    def _start(self, server: Server, slot: Slot, offset: str | None) -> Offset:
        """Where to continue. Raises SourceRefused unless the slot has everything after it."""
        system, timeline = server.system()
        publication = server.publication(self._names.publication) or 0
        beginning = Offset(system, timeline, slot.confirmed, publication=publication)
        if offset is None:
            return replace(beginning, initial=Initial() if self._options.initial else None)
        known = Offset.parse(offset)
        if problem := self._problem(server, slot, known, beginning):
            if self._skips_to(slot):
                return _after_loss(server, known, beginning)
            raise SourceRefused(f"{problem}, so {LOST}: {lsn_text(slot.confirmed)}")
        return replace(known, timeline=timeline)

    def _skips_to(self, slot: Slot) -> bool:
        skip_to = self._options.skip_to
        return skip_to is not None and lsn_of(skip_to) == slot.confirmed

    def _problem(self, server: Server, slot: Slot, known: Offset, present: Offset) -> str | None:
        """Why the slot lacks changes after the offset ``known``, or None. ``present`` describes the
        server now."""
        name, at, timeline = self._names.slot, lsn_text(known.lsn), present.timeline
        if known.system != present.system:
            return (
                f"the server {server.where} has the system identifier {present.system}, and the "
                f"source's offset {at} is of {known.system}: it is another server, or was "
                "initialized again"
            )
        if known.timeline != timeline:
            fork = _fork_of(server, known.timeline)
            if fork is None or fork < known.reach:
                shown = "an unknown position" if fork is None else lsn_text(fork)
                return (
                    f"the server {server.where} is on timeline {timeline}, which left timeline "
                    f"{known.timeline} at {shown}, before the source's offset "
                    f"{lsn_text(known.reach)}: a failover or a restore lost the end of its log"
                )
        if (flushed := server.log().flushed) < known.reach:
            return (
                f"the log of the server {server.where} ends at {lsn_text(flushed)}, before the "
                f"source's offset {lsn_text(known.reach)}: the server was set back"
            )
        if known.publication != present.publication:
            return (
                f"the publication {self._names.publication!r} at {server.where} was created again "
                f"after the source's offset {at}, and the log from before was not published"
            )
        if slot.confirmed > known.lsn:
            return (
                f"the replication slot {name!r} at {server.where} was advanced to "
                f"{lsn_text(slot.confirmed)}, and the source's offset is {at}: a forced failover "
                "or a restore gave up part of the journal, or the slot was created again or is "
                "used by something else"
            )
        return None


def _after_loss(server: Server, known: Offset, start: Offset) -> Offset:
    """Where to continue after lost changes. The initial read continues behind its last page."""
    if known.initial is None or known.initial.is_whole:
        return start
    return _hiding(replace(start, initial=Initial(known.initial.to)), server.unfinished())


def _fork_of(server: Server, timeline: int) -> int | None:
    try:
        return server.fork_of(timeline)
    except SourceRefused:  # the server has no such history
        return None


def _hiding(start: Offset, xids: frozenset[int]) -> Offset:
    assert start.initial is not None, "only an initial read has hidden transactions"
    return replace(start, initial=start.initial.with_hidden(xids))


def _name_of(place: SourcePlace) -> str:
    """A name for the slot that no other source has, of at most 63 characters."""
    names = f"{place.group}/{place.stream}/{place.source}"
    digest = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^a-z0-9]+", "_", names.lower()).strip("_")
    return f"{f'ha_{readable}'[:_NAME_CHARACTERS]}_{digest}"
