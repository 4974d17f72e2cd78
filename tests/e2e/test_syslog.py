"""syslog-ng with the configuration of the guide loses no message when the active changes. Without
Spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from ha_engine.journal.inspection import stored_events
from ha_engine.query.application import load_application
from tests.docs.pages import applications
from tests.e2e.node_under_test import NodeUnderTest
from tests.e2e.pair import Pair, running_pair
from tests.e2e.stand_in import NodeWithStandIn
from tests.e2e.syslog import GUIDE, SyslogNg, logger, running_syslog_ng
from tests.e2e.without_spark import APPLICATION
from tests.programs import needs
from tests.waiting import wait_until

PATIENCE = 60
SOME = 100

pytestmark = [
    needs("syslog-ng"),
    pytest.mark.nightly("test_pushed_events sends messages to one node that lives"),
    pytest.mark.slow,
]
Row = dict[str, Any]


def application() -> str:
    """Return the stream of the guide with a query whose batches a stand-in makes."""
    (streams,) = [
        tree["streams"]
        for tree in map(yaml.safe_load, applications(GUIDE))
        if tree["name"] == "logs"
    ]
    return yaml.safe_dump(
        yaml.safe_load(APPLICATION.replace("events", "logs")) | {"streams": streams}
    )


@pytest.fixture
def pair(node_database: str, tmp_path: Path) -> Iterator[Pair]:
    with running_pair(Pair(tmp_path, application(), node_database, NodeWithStandIn)) as pair:
        pair.wait_protected()
        yield pair


def stored(node: NodeUnderTest) -> list[Row]:
    """Return the messages in the journal of the node, in their order."""
    schema = load_application(node.application_path).streams["logs"].arrow_schema
    records = stored_events(node.data_dir / "journal", "logs")
    batches = [pa.ipc.read_record_batch(record.payload, schema) for record in records]
    return [row for batch in batches for row in batch.to_pylist()]


def test_each_message_is_stored_in_order_when_the_active_and_syslog_ng_are_killed(
    pair: Pair,
) -> None:
    before = pair.active()
    assert before is not None
    after = pair.other(before)
    sent: list[str] = []

    def send(syslog_ng: SyslogNg) -> None:
        with logger(syslog_ng.port, socket.SOCK_STREAM) as shop:
            for _ in range(SOME):
                sent.append(f"message {len(sent)};")
                shop.info(sent[-1])

    def has_all(node: NodeUnderTest) -> bool:
        return sent[-1] in texts(stored(node))

    # syslog-ng asks the first URL first.
    with running_syslog_ng([after.url, before.url]) as syslog_ng:
        send(syslog_ng)
        wait_until(lambda: has_all(before), within=PATIENCE, every=0.1)
        assert "status_code='503'" in syslog_ng.log_text()
        send(syslog_ng)
        before.kill_everything()
        send(syslog_ng)
        wait_until(lambda: syslog_ng.keeps(sent[-1]) or has_all(after), within=PATIENCE)
        syslog_ng.kill()
        syslog_ng.start()
        send(syslog_ng)
        wait_until(lambda: has_all(after), within=PATIENCE, every=0.1)
    found = stored(after)
    assert list(dict.fromkeys(texts(found))) == sent
    assert len({(row["id"], row["received"]) for row in found}) == len(sent)


def texts(rows: list[Row]) -> list[str]:
    return [row["message"] for row in rows]
