"""A difference between the nodes outlives the process that found it (R10)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ha_engine.core import Core, Deployment, HighWater, Identity, LeaseTiming, RestartPolicy
from ha_engine.core.marks import MarkLimits
from ha_engine.journal import Journal
from ha_engine.keeper import restore
from ha_engine.outbox import Outbox
from tests.core.world import plan
from tests.publish.batches import QUERY, admit
from tests.receive.solo import Solo


def new_core() -> Core:
    limits = MarkLimits(100, 0.0, 1.0, 3, 1000)
    identity = Identity("b", "p2", "jb", "group-1", "group-1")
    deployment = Deployment("app", (plan(QUERY, "flights", "table"),), limits, RestartPolicy())
    return Core(identity, LeaseTiming(3.0, 0.8, 0.4), HighWater(), deployment)


async def test_what_the_holder_tells_again_is_compared_with_what_is_on_disk(tmp_path: Path) -> None:
    outbox = Outbox.open(tmp_path / "outbox", max_batches=10, max_bytes=1 << 30)
    admit(outbox, tmp_path / "outbox", 1, pa.table({"n": [1]}))
    outbox.report_digest(QUERY, 1, "mine")
    journal, core, solo = (
        Journal.open(tmp_path / "journal", group="test"),
        new_core(),
        Solo(tmp_path),
    )
    restore(tmp_path / "base.arrow", journal, outbox, core, solo.gate)
    digests = core.querying.digests
    assert not digests.note_theirs(QUERY, 1, "theirs")
    assert digests.differing == {QUERY: 1}
    journal.close()
    await solo.close()
