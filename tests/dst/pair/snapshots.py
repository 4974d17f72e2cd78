"""The snapshots of one node process: the second implementation of the driver's ``Snapshots``.

The base is the engine's own, and so is the end of a restore. The database of the simulation stores
whole files in place of chunks, because chunks and their damage have tests of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from ha_engine.core import actions as do
from ha_engine.errors import SnapshotDamaged, SnapshotFailed
from ha_engine.journal import Journal
from ha_engine.snapshot import base_file
from ha_engine.snapshot.base_builder import BaseBuilder
from ha_engine.snapshot.restore import CHECKPOINTS, JOURNAL, OUTBOX, Places
from ha_engine.system.disk import disk
from ha_engine.system.files import make_directory, replace_file
from ha_engine.types import History, Position, Revision, SnapshotPlace
from tests.dst.pair.checkpoint import State, load, store
from tests.dst.pair.group import GROUP

if TYPE_CHECKING:
    from tests.dst.pair.process import NodeProcess

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SavedQuery:
    """A query in a snapshot: its lineage without the journal's id, and the batches in the outbox
    that some sink may lack."""

    lineage: str
    state: State
    batches: dict[int, bytes]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot in the database; ``base`` is the content of a base file."""

    id: int
    position: Position
    last_mark: Position
    group_id: str
    base: bytes
    queries: dict[str, SavedQuery]


class NodeSnapshots:
    def __init__(self, process: NodeProcess, builder: BaseBuilder) -> None:
        self._process, self._builder = process, builder
        self._database = process.host.history.database
        self._places = Places(process.host.home, process.host.home / CHECKPOINTS)
        self._thread = ThreadPoolExecutor(1)

    async def take(self, place: SnapshotPlace) -> int:
        return await self._in_thread(lambda: self._call(lambda: self._take(place)))

    async def show(self, draft: int, epoch: int) -> tuple[tuple[Position, Position], ...]:
        show = self._database.show
        if not await self._in_thread(lambda: self._call(lambda: show(draft, self._process, epoch))):
            raise SnapshotFailed("this node no longer holds the lease")
        return await self.look()

    async def look(self) -> tuple[tuple[Position, Position], ...]:
        visible = await self._in_thread(lambda: self._call(lambda: self._database.visible))
        return tuple((one.position, one.last_mark) for one in reversed(visible))

    async def restore(self, restore: do.Restore) -> Revision:
        return await self._in_thread(lambda: self._restore(restore))

    async def bring_state(
        self, run: do.RunQuery, history: History, admitted: int
    ) -> Revision | None:
        return await self._in_thread(lambda: self._bring_state(run, history, admitted))

    async def trim(self, position: Position) -> None:
        journal, path = self._builder.journal, self._builder.path
        content = await self._in_thread(lambda: self._builder.through(position.sequence))

        def keep() -> None:
            with disk(path):
                base_file.store(path, content, self._process.files)

        await self._in_thread(keep)
        await self._process.writer.run_exclusive(lambda: journal.trim_before(position.sequence + 1))
        self._process.host.history.counts["trims"] += 1

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _call(self, work: Callable[[], T]) -> T:
        return self._database.call(self._process, work, row=None)

    # -- in the thread -----------------------------------------------------------------------------

    def _take(self, place: SnapshotPlace) -> int:
        core, base = self._process.core, self._builder.at(place)
        queries = {query: self._saved(query, number) for query, number in place.batches}
        return self._database.draft(
            lambda id: Snapshot(
                id, place.position, place.last_mark, core.group_id or "", base, queries
            )
        )

    def _saved(self, query: str, number: int) -> SavedQuery:
        lineage, states = load(self._process.host.checkpoint(query))
        state = next((one for one in states if one[0] == number), None)
        if state is None:
            raise SnapshotFailed(f"the checkpoint of {query} has no batch {number}")
        outbox, batches = self._process.outbox, dict[int, bytes]()
        for batch in range(number, outbox.floor(query), -1):
            kept = outbox.batch(query, batch)
            if kept is None:
                break
            batches[batch] = kept.path.read_bytes()
        return SavedQuery(lineage.rpartition(":")[2], state, batches)

    def _usable(self, history: History) -> Iterator[Snapshot]:
        for one in reversed(self._call(lambda: self._database.visible)):
            if history.has_all(one.position, one.last_mark):
                yield one

    def _restore(self, restore: do.Restore) -> Revision:
        found = next(self._usable(restore.history), None)
        if found is None:
            raise SnapshotDamaged("there is no snapshot of this history")
        places, files = self._places, self._process.files
        with disk(places.home):
            for left in (places.coming, places.staged_checkpoints):
                if left.exists():
                    files.rmtree(left)
        base = base_file.decode(found.base).base
        journal_id = Journal.create_after(
            places.coming / JOURNAL,
            base.position,
            group=GROUP,
            group_id=found.group_id,
            epochs=base.epochs,
            files=files,
        )
        with disk(places.home):
            replace_file(places.coming / JOURNAL / base_file.NAME, [found.base], files)
            make_directory(places.coming / OUTBOX, files=files)
            for query, saved in found.queries.items():
                self._write_query(query, saved, f"{journal_id}:{saved.lineage}")
            files.rename(places.coming, places.whole)
            files.fsync_directory(places.home)
        self._process.host.history.counts["restores"] += 1
        return _revision(found)

    def _write_query(self, query: str, saved: SavedQuery, lineage: str) -> None:
        places, files = self._places, self._process.files
        outbox = places.coming / OUTBOX / query
        checkpoint = places.staged_checkpoints / CHECKPOINTS / query
        make_directory(outbox, files=files)
        make_directory(checkpoint, files=files)
        for number, content in saved.batches.items():
            replace_file(outbox / f"{number}.arrow", [content], files)
        left = min(saved.batches, default=saved.state[0] + 1) - 1
        replace_file(outbox / f"{left}.left", [], files)
        store(checkpoint, lineage, [saved.state], files)

    def _bring_state(self, run: do.RunQuery, history: History, admitted: int) -> Revision | None:
        place, files = self._process.host.checkpoint(run.query), self._process.files
        lineage, states = load(place)
        if lineage in run.earlier:
            store(place, run.lineage, states, files)
            return None
        if lineage == run.lineage:
            return None
        for one in self._usable(history):
            saved = one.queries[run.query]
            fits = saved.lineage == run.lineage.rpartition(":")[2] and saved.state[0] <= admitted
            if fits:
                with disk(place):
                    make_directory(place, files=files)
                store(place, run.lineage, [saved.state], files)
                self._process.host.history.counts["states restored"] += 1
                return _revision(one)
        raise SnapshotDamaged("no snapshot has the state")


def _revision(found: Snapshot) -> Revision:
    return Revision(found.id, "", found.position, found.last_mark, NOW, NOW, 0, 0, 0.0)
