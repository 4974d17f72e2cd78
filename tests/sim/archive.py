"""The snapshots of a simulated group: drafts, visible revisions, and restores from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.types import Base, Body, Mark, Member, Position, QueryBase, Record, SnapshotPlace
from tests.core.archive import KEPT
from tests.core.surroundings import Checkpoint, Content, Disk
from tests.core.truth import require

if TYPE_CHECKING:
    from tests.sim.group import Group
    from tests.sim.node import SimNode


@dataclass(frozen=True)
class Revision:
    """The state of a node at ``place``. ``lineages`` are without the journal's id; ``records`` are
    those that the base replaces, which the tests still read. ``states`` says which code made the
    state of each query, and from which mark on."""

    place: SnapshotPlace
    base: Base
    records: tuple[Record, ...]
    lineages: dict[str, str]
    outbox: dict[str, dict[int, Content]]
    rows: dict[tuple[str, int], int]
    trimmed: dict[str, int]
    made_by: dict[tuple[str, int], str]
    states: dict[str, str]


class Archive:
    """The snapshots in the group's database, reachable only while that is."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.drafts: dict[int, Revision] = {}
        # The visible revisions after each change; a failover of the database may lose the newest.
        self._past: list[list[Revision]] = [[]]
        self._lost_before = self._epoch_of_loss = 0

    @property
    def visible(self) -> list[Revision]:
        return self._past[-1]

    def lose(self, changes: int) -> None:
        """Lose that many of the newest changes, and any draft."""
        del self._past[max(1, len(self._past) - changes) :]
        self._lost_before = len(self.drafts)
        self._epoch_of_loss = self.group.around.table.highest[0]

    def require_kept(self, node: SimNode, through: Position) -> None:
        """RULES.md#r29: a holder trims only records that an existing revision covers. A holder from
        before a loss of the database does not know of that loss yet."""
        if node.core.term is None or node.core.epoch <= self._epoch_of_loss:
            return
        stands = [
            one.place.position for one in self.visible if node.core.journal.has(one.place.position)
        ]
        require(any(place >= through for place in stands), "R29", f"trims to {through} of {stands}")

    def find(self, node: SimNode) -> None:
        def done() -> None:
            if self.reached(node):
                node.feed(on.RevisionsKept(self._places()))

        node.later(node.random.uniform(0.01, 0.3), done)

    def take(self, node: SimNode, place: SnapshotPlace) -> None:
        """Takes a while, and sometimes it fails; the state is as of the cut all the same."""
        draft = len(self.drafts) + 1
        self.drafts[draft] = _captured(node, place)

        def done() -> None:
            if not self.reached(node) or node.random.random() < 0.1:
                node.feed(on.SnapshotFailed(place, "the database is away"))
            else:
                self.group.count("snapshots taken")
                node.feed(on.SnapshotTaken(place, draft))

        node.later(node.random.uniform(0.02, 0.6), done)

    def show(self, node: SimNode, draft: int, epoch: int) -> None:
        def done() -> None:
            row = self.group.around.table.row
            holds = row is not None and (row.holder, row.epoch) == (node.me, epoch)
            if not self.reached(node) or not holds or draft <= self._lost_before:
                node.feed(on.SnapshotNotShown("the lease is another's, or the draft is gone"))
                return
            self._past.append([*self.visible, self.drafts[draft]][-KEPT:])
            self.group.count("snapshots visible")
            node.feed(on.RevisionsKept(self._places()))

        node.later(node.random.uniform(0.01, 0.3), done)

    def restore(self, node: SimNode, action: do.Restore) -> None:
        def done() -> None:
            found = self._usable(action) if self.reached(node) else None
            if found is None or node.random.random() < 0.1:
                self.group.count("restores failed")
                node.feed(on.RestoreFailed("there is none"))
            else:
                self.group.count("restores")
                if action.given_up is not None:
                    self.group.count("journals set aside")
                node.begin_from(_disk_of(node, found))

        node.later(node.random.uniform(0.05, 2.0), done)

    def usable(self, node: SimNode, query: str, lineage: str) -> Revision | None:
        """The newest revision with the state of one query in this node's history."""
        for revision in reversed(self.visible) if self.reached(node) else ():
            place = revision.place
            known = node.core.journal.history.has_all(place.position, place.last_mark)
            if known and revision.lineages.get(query) == lineage.rpartition(":")[2]:
                return revision
        return None

    def _usable(self, action: do.Restore) -> Revision | None:
        """Return the newest revision of that history, not before its begin."""
        for revision in reversed(self.visible):
            place = revision.place
            if action.history.has_all(place.position, place.last_mark):
                return revision
        return None

    def _places(self) -> tuple[tuple[Position, Position], ...]:
        return tuple((one.place.position, one.place.last_mark) for one in self.visible)

    def reached(self, node: SimNode) -> bool:
        database = self.group.database
        return database.up and node.node not in database.unreachable


def _captured(node: SimNode, place: SnapshotPlace) -> Revision:
    numbers, through, disk = dict(place.batches), place.position.sequence, node.disk
    for query, number in numbers.items():
        done = disk.checkpoints[query].done
        require(done.number >= number, "R28", f"{query} is at {done}, not yet at {number}")
    base = node._core_of(disk.records[:through]).journal.as_base()
    behind = [record.body for record in disk.records[through:]]
    queries = tuple(_base_at(one, numbers, through, behind) for one in base.queries)
    return Revision(
        place,
        replace(base, queries=queries),
        tuple(disk.records[:through]),
        {query: disk.checkpoints[query].lineage.rpartition(":")[2] for query in numbers},
        {query: _up_to(disk.outbox.get(query, {}), n) for query, n in numbers.items()},
        dict(disk.outbox_rows),
        {query: min(disk.trimmed.get(query, 0), n) for query, n in numbers.items()},
        dict(disk.made_by),
        {query: disk.checkpoints[query].made_by for query in numbers},
    )


def _base_at(
    base: QueryBase, numbers: dict[str, int], through: int, behind: list[Body]
) -> QueryBase:
    query, marks = base.version.query, [body for body in behind if isinstance(body, Mark)]
    ahead = tuple(m for m in marks if m.query == query and m.number <= numbers[query])
    return replace(base, last=Mark(query, numbers[query], through), ahead=ahead)


def _up_to(batches: dict[int, Content], number: int) -> dict[int, Content]:
    return {one: content for one, content in batches.items() if one <= number}


def _disk_of(node: SimNode, revision: Revision) -> Disk:
    """Return a disk with a journal of a new id that begins after the base (RULES.md#r8)."""
    node.disks += 1
    numbers, through = dict(revision.place.batches), revision.place.position.sequence
    journal_id = f"{node.node}-{node.disks}"
    checkpoints = {
        query: Checkpoint(
            f"{journal_id}:{revision.lineages[query]}",
            Mark(query, n, through),
            made_by=revision.states[query],
        )
        for query, n in numbers.items()
    }
    return Disk(
        journal_id,
        node.group.around.table.row.group_id if node.group.around.table.row else None,
        list(revision.records),
        through,
        revision.base,
        {query: dict(batches) for query, batches in revision.outbox.items()},
        numbers,
        dict(revision.trimmed),
        dict(revision.rows),
        checkpoints,
        node.disk.high_water,
        made_by=dict(revision.made_by),
    )


def require_out_of_sync(node: SimNode) -> None:
    """RULES.md#r8: the node may discard its journal only while it is out of sync."""
    newest = node.group.facts.newest
    member = Member(node.node, node.disk.journal_id)
    listed = newest.in_sync if newest is not None else ()
    require(member not in listed, "R8", f"{node.node} begins anew while it is in sync")
