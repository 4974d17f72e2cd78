"""A member whose disk went back in time: the holder neither counts nor streams to its journal."""

from __future__ import annotations

from ha_engine.core import actions as do
from ha_engine.core import messages as say
from ha_engine.core.deployment import Deployment
from ha_engine.core.journal_state import JournalState
from ha_engine.core.progress import PeerTiming
from ha_engine.core.queries import RestartPolicy
from ha_engine.core.replication import Replication
from ha_engine.types import ORIGIN, EpochStart, Member, Position, Record
from tests.core.lone import LIMITS

ME, OTHER = Member("a", "a-1"), Member("b", "b-1")


def test_holder_sends_no_records_to_a_journal_that_lacks_what_it_acked() -> None:
    journal = JournalState(Deployment("d", (), LIMITS, RestartPolicy()))
    for sequence in range(1, 4):
        journal.apply(Record(Position(1, sequence), 0, EpochStart("a", "p1", False)))
    replication = Replication(ME, 1, PeerTiming(0.2, 2.0), 0.0, ["b"], 3)

    def answer_to(last: int) -> list[do.Action]:
        reply = say.ProbeReply(1, "b-1", Position(1, last), 0, journal.epochs)
        return list(replication.on_probe_reply(0.0, "b", reply, journal, (), ORIGIN))

    assert any(isinstance(action, do.StreamRecords) for action in answer_to(3))
    replication.acked(0.0, "b", say.Ack(1, "b-1", 3, True, True, ()))
    replication.unlinked("b")
    list(replication.linked(0.0, "b", 3))

    [sent] = answer_to(2)
    assert isinstance(sent, do.Send)
    assert isinstance(sent.message, say.Follow)
    assert sent.message.acked == 3
    replication.choose_near(0.0)
    assert replication.near == frozenset()
