"""A joining member gets the digests of the batches that it has yet to run (RULES.md#i6,
RULES.md#r10)."""

from __future__ import annotations

from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.core import messages as say
from ha_engine.core.digests import DIGESTS_KEPT
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
