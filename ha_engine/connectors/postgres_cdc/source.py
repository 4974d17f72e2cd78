"""The plug-in ``postgres_cdc``: check the server, the publication and the slot, and open the
source at an offset."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel

from ha_engine.connectors.postgres_cdc.continuity import (
    gap_of,
    gap_since,
    removed_log,
    start_after,
)
from ha_engine.connectors.postgres_cdc.initial import Initial
from ha_engine.connectors.postgres_cdc.offset import Offset, lsn_of
from ha_engine.connectors.postgres_cdc.options import PostgresCdcOptions
from ha_engine.connectors.postgres_cdc.reading import Reading
from ha_engine.connectors.postgres_cdc.rows import require_fit
from ha_engine.connectors.postgres_cdc.server import (
    LOST,
    Names,
    Present,
    Server,
    Slot,
    TableForm,
    quoted,
)
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
            present = server.present(self._names)
            if present.publication is not None or not self._options.create:
                self._table(server, present)
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
            self._require_slot(server, present)
        finally:
            server.close()

    def peek(self, offset: str | None, rows_max: int, seconds: float) -> SourceBatch | None:
        """Return the next rows. The slot is in use for a moment, for which a reader waits."""
        server = self._server()
        try:
            self._require_server(server)
            present = server.present(self._names)
            table = self._table(server, present)
            if (slot := self._require_slot(server, present)) is None:
                return None
            start = self._start(server, present, slot, offset, table)
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
            present = self._present(server, offset)
            table = self._table(server, present)
            slot = self._require_slot(server, present)
            if slot is None:
                present = self._created_slot(server)
                slot = self._require_slot(server, present)
            if slot is None:
                raise SourceUnavailable(
                    f"the replication slot {self._names.slot!r} vanished after its creation"
                )
            start = self._start(server, present, slot, offset, table)
            if start.initial and offset is None:
                # The slot may have passed transactions that no snapshot sees yet, even a new one:
                # a commit that waits for a synchronous standby is already in the log.
                hidden = server.unfinished()
                start = replace(start, initial=start.initial.with_hidden(hidden))
            is_unknown = offset is None and start.initial is None
            return Reading(
                server,
                self._options,
                self._place,
                self._names,
                table,
                start,
                takes=True,
                is_unknown=is_unknown,
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

    def _present(self, server: Server, offset: str | None) -> Present:
        """Return what the server has, with a new publication if it may be created. Raises
        SourceRefused if the table was renamed, or the slot is missing, after ``offset``."""
        present = server.present(self._names)
        gap = offset and gap_of(server, self._names, present, Offset.parse(offset))
        if gap and present.slot is None:
            raise SourceRefused(
                f"{gap.reason}, perhaps in a failover of the server that did not keep it, so "
                f"{LOST}, after SELECT "
                f"pg_create_logical_replication_slot('{self._names.slot}', 'pgoutput')"
            )
        if present.publication is None and self._options.create:
            self._create_publication(server)
            present = server.present(self._names)
        return present

    def _create_publication(self, server: Server) -> None:
        names = self._names
        kinds = ", ".join(sorted(self._options.operations))
        try:
            server.create_publication(names.publication, names.schema, names.table, kinds)
        except EngineError as error:
            if server.present(names).publication is None:
                raise SourceRefused(
                    f"the publication {names.publication!r} cannot be created: {error}; let the "
                    f"table's owner run CREATE PUBLICATION {quoted(names.publication)} FOR TABLE "
                    f"{names.quoted_table}"
                ) from error

    def _table(self, server: Server, present: Present) -> TableForm:
        """The published form of the table. Raises SourceRefused if it lacks what the source
        needs."""
        names, options = self._names, self._options
        if present.publication is None:
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

    def _require_slot(self, server: Server, present: Present) -> Slot | None:
        """The slot, or None if there is none. Raises SourceRefused if it is of no use."""
        name, slot = self._names.slot, present.slot
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
                f"{removed_log(name, server.where)}, so {LOST}; drop the slot before"
            )
        return slot

    def _created_slot(self, server: Server) -> Present:
        try:
            server.create_slot(self._names.slot)
        except EngineError:
            if server.present(self._names).slot is None:
                raise
        return server.present(self._names)

    def _start(
        self, server: Server, present: Present, slot: Slot, offset: str | None, table: TableForm
    ) -> Offset:
        """Return the offset to continue at. Raises SourceRefused unless the slot has everything
        after it."""
        system, timeline = server.system()
        if present.published is None:
            raise SourceUnavailable("the publication was changed in this moment")
        beginning = Offset(system, timeline, slot.confirmed, present.published)
        if offset is None:
            initial = Initial(order=table.order) if self._options.initial else None
            return replace(beginning, initial=initial)
        known = Offset.parse(offset)
        self._require_order(known, table)
        if gap := gap_since(server, self._names, present, known, system, timeline):
            if self._skips_to(slot):
                return start_after(gap, server, known, beginning, table.order)
            raise gap.refusal(slot)
        return replace(known, timeline=timeline)

    def _require_order(self, known: Offset, table: TableForm) -> None:
        if known.initial is None or known.published.table != table.oid:
            return
        if known.initial.order not in (None, table.order):
            raise SourceRefused(
                f"the primary key of {self._names.quoted_table} was changed during the initial "
                f"read, from {known.initial.order} to {table.order}, so that the place of the next "
                "page is not known; change the key back, or give the source another name, with "
                "which it reads the whole table again"
            )

    def _skips_to(self, slot: Slot) -> bool:
        skip_to = self._options.skip_to
        return skip_to is not None and lsn_of(skip_to) == slot.confirmed


def _name_of(place: SourcePlace) -> str:
    """A name for the slot that no other source has, of at most 63 characters."""
    names = f"{place.group}/{place.stream}/{place.source}"
    digest = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^a-z0-9]+", "_", names.lower()).strip("_")
    return f"{f'ha_{readable}'[:_NAME_CHARACTERS]}_{digest}"
