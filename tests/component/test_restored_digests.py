"""A digest mismatch between the nodes outlives the process that found it (RULES.md#r10)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ha_engine.journal import Journal
from ha_engine.node.storage import replay
from ha_engine.outbox import Outbox
from tests.core.lone import member_b
from tests.core.world import plan
from tests.publish.batches import QUERY, admit
from tests.receive.solo import Solo


async def test_restarted_node_compares_the_digests_of_the_holder_with_its_disk(
    tmp_path: Path,
) -> None:
    outbox = Outbox.open(tmp_path / "outbox")
    admit(outbox, tmp_path / "outbox", 1, pa.table({"n": [1]}))
    outbox.report_digest(QUERY, 1, "mine")
    journal, solo = Journal.open(tmp_path / "journal", group="test"), Solo(tmp_path)
    core = member_b(plans=[plan(QUERY, "flights", "table")])
    replay(tmp_path / "base.arrow", journal, outbox, core, solo.gate)
    digests = core.query_control.digests
    assert not digests.note_theirs(QUERY, 1, "theirs")
    assert digests.differing == {QUERY: 1}
    journal.close()
    await solo.close()
