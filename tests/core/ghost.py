"""A faultless follower whose journal has at once all records of this node's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.types import ORIGIN, Member, Position, SnapshotPlace

if TYPE_CHECKING:
    from tests.core.world import World

MEMBER = Member("b", "j2")


class Ghost:
    """The member b with the journal j2, as the core of ``world`` sees it."""

    def __init__(self, world: World) -> None:
        self.world, self.linked, self.headroom = world, False, True
        self.warm, self.digest_of_snapshots = False, ""
        # Whether the test ends a snapshot itself, and then the result that the member reports.
        self.takes_long, self._taken = False, list[say.SnapshotTaken]()
        # None: its queries are level with the holder's.
        self._batches: tuple[tuple[str, int], ...] | None = None

    def link(self) -> None:
        if not self.linked:
            self.linked = True
            self.world.feed(on.PeerConnected(MEMBER.node))

    def unlink(self) -> None:
        if self.linked:
            self.linked = False
            self.world.feed(on.PeerLost(MEMBER.node, "closed"))

    def is_at(self, query: str, batch: int) -> None:
        """Let its query reach that batch; its next ack says so."""
        self._batches = ((query, batch),)
        self._ack(self._last().epoch)

    def hears(self, action: do.Action) -> None:
        """Answer the core's messages, and ack the records that the core appends."""
        if not self.linked:
            return
        match action:
            case do.Send(_, say.Probe(epoch)):
                self._say(say.ProbeReply(epoch, MEMBER.journal_id, self._last(), 0, self._epochs()))
            case do.Send(_, say.Heartbeat(epoch)) | do.StreamRecords(_, epoch):
                self._ack(epoch)
            case do.Send(_, say.TakeSnapshot(epoch, place)):
                self._take(epoch, place)
            case do.AppendRecords(records):
                self._ack(records[-1].position.epoch)
            case _:
                pass

    def _ack(self, epoch: int) -> None:
        last = self._last().sequence
        batches = self._level() if self._batches is None else self._batches
        self._say(say.Ack(epoch, MEMBER.journal_id, last, self.headroom, self.warm, batches))

    def _take(self, epoch: int, place: SnapshotPlace) -> None:
        """Its batches came to the same as the holder's, or to ``digest_of_snapshots``."""
        mine = self.world.core.query_control.digests.mine
        batches = tuple((*one, self.digest_of_snapshots or mine(*one)) for one in place.batches)
        draft = self.world.archive.take(place)
        self._taken.append(say.SnapshotTaken(epoch, place.request, draft, batches))
        if not self.takes_long:
            self.has_taken()

    def has_taken(self) -> None:
        self._say(self._taken.pop())

    def _say(self, message: say.Message) -> None:
        self.world.feed(on.PeerMessage(MEMBER.node, message))

    def _level(self) -> tuple[tuple[str, int], ...]:
        marks = self.world.core.deployment.marks
        return tuple((query, one.admitted) for query, one in marks.items())

    def _last(self) -> Position:
        records = self.world.disk.records
        return records[-1].position if records else ORIGIN

    def _epochs(self) -> tuple[Position, ...]:
        firsts: dict[int, Position] = {}
        for record in self.world.disk.records:
            firsts.setdefault(record.position.epoch, record.position)
        return tuple(firsts.values())
