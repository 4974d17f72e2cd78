"""A joining member gets the digests of the batches that it has yet to run (RULES.md#i6,
RULES.md#r10)."""

from __future__ import annotations

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.digests import DIGESTS_KEPT, Digests
from tests.core.world import World, plan


def test_joining_member_gets_the_newest_digests_after_its_follow_message() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    for number in range(1, DIGESTS_KEPT + 2):
        world.feed(on.BatchDigested("delays", number, f"digest {number}"))
    told: list[say.Message] = []

    def listen(action: do.Action) -> None:
        if isinstance(action, do.Send):
            told.append(action.message)

    world.heard = listen
    world.ghost.link()
    world.wait(0.75)
    digests = [word for word in told if isinstance(word, say.BatchDigest)]
    assert [one.number for one in digests] == list(range(2, DIGESTS_KEPT + 2))
    assert digests[0].digest == "digest 2"
    words = [type(word) for word in told]
    assert words.index(say.Follow) < words.index(say.BatchDigest)
    assert words.count(say.Follow) == 1


def test_new_active_reports_a_digest_mismatch_that_it_finds() -> None:
    world = World(plans=(plan("delays", "flights", "board"),))
    world.start()
    world.core.query_control.digests.note_theirs("delays", 5, "what the active before said")
    told: list[do.Action] = []
    world.heard = told.append
    world.feed(on.BatchDigested("delays", 5, "another"))
    assert do.ReportDifference("delays", 5) in told


def test_digests_of_a_batch_that_may_be_of_other_code_are_not_compared() -> None:
    """RULES.md#r23: this node keeps the batch of the code before."""
    digests = Digests(may_differ=lambda query, number: number == 2)
    for number in (1, 2, 3):
        assert digests.note_mine("delays", number, "of the code before")
    assert digests.note_theirs("delays", 2, "of the code in force")
    assert not digests.note_theirs("delays", 3, "of the code in force")
    assert [message.number for message in digests.as_messages(1)] == [1, 3]
    assert digests.differing == {"delays": 3}
