"""The holder counts the acks of one journal of a member, and no others."""

from __future__ import annotations

from ha_engine.core.messages import Ack
from ha_engine.core.progress import Peer


def test_ack_of_a_lost_journal_does_not_count_for_the_present_one() -> None:
    """A link to a new process of a member ends the link to its former process, so the sync stage
    delivers no such ack. The core does not rely on this."""
    peer = Peer("b", 0.0, connected=True)
    peer.follows(1.0, "b-2")
    peer.acked(2.0, Ack(1, "b-1", 9, headroom=True, warm=True))
    assert (peer.acked_through, peer.last_message_at, peer.warm) == (0, 1.0, False)
    peer.acked(3.0, Ack(1, "b-2", 4, headroom=True, warm=True))
    assert (peer.acked_through, peer.last_message_at, peer.warm) == (4, 3.0, True)
