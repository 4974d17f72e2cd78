"""A plug-in of another package: its installation, its discovery, and protection against it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml

from ha_engine.errors import ApplicationError, ConfigError, SinkUnavailable
from ha_engine.node.connectors import plugin_options
from ha_engine.outbox import Outbox
from ha_engine.plugins import OutputBatch, SinkPlace, SinkPlugin, sink_kind
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.ledger_store import LedgerStore
from ha_engine.publish import Publisher, Sink, SinkState, SinkStatus
from ha_engine.publish.delivery import Timing
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.plugin import PluginSink
from ha_engine.query.application import load_application
from ha_engine.testing import SinkContract
from tests.publish.batches import GROUP, QUERY, Granted, admit, batch_of, soon
from tests.publish.plugin_sinks import plugin_sink
from tests.waiting import async_wait_until

pytestmark = pytest.mark.usefixtures("plugin_example")


class TestTheExample(SinkContract):
    @pytest.fixture(autouse=True)
    def _kind(self) -> None:
        type(self).kind = sink_kind("lines")

    def options(self) -> dict[str, Any]:
        return {"directory": str(self.home / "out")}

    def delivered(self) -> list[dict[str, Any]]:
        lines = [file.read_text().splitlines() for file in (self.home / "out").iterdir()]
        return [yaml.safe_load(line) for part in lines for line in part]


# -- in an application -----------------------------------------------------------------------------


def application(home: Path, **sink: Any) -> Path:
    tree = {
        "name": "plugins",
        "streams": {"events": {"schema": {"n": "bigint"}}},
        "queries": {"all": {"sql": "SELECT n FROM events", "sinks": [{"name": "out", **sink}]}},
    }
    path = home / "application.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_an_application_names_its_guarantee(tmp_path: Path) -> None:
    loaded = load_application(application(tmp_path, type="lines", directory="/somewhere"))
    [sink] = loaded.queries["all"].sinks
    assert (sink.type, sink.guarantee) == ("lines", sink_kind("lines").guarantee)
    other = load_application(application(tmp_path, type="lines", directory="/elsewhere"))
    assert other.digest != loaded.digest


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ({"type": "line"}, r"queries.all.sinks.out.type: .*did you mean 'lines'"),
        ({"type": "lines", "directry": "/x"}, r"out.directry is not a known key; did you mean 'di"),
        ({"type": "lines"}, r"sinks.out.directory is missing"),
        (
            {"type": "unloadable"},
            r"package ha-engine-example-sink, which cannot be loaded: ModuleN",
        ),
        ({"type": "http", "url": "nowhere"}, r"sinks.out.url: is not a URL of http or https$"),
        (
            {"type": "http", "url": "http://me:hun/ter@host"},
            r"url: is not a URL; write the special",
        ),
        (
            {"type": "http", "url": "http://host", "headers": {"X-Token": "hunter\n2"}},
            r"headers: 'X-Token' is not a header, or its value is not printable ASCII$",
        ),
    ],
)
def test_a_bad_sink_is_named(tmp_path: Path, sink: dict[str, Any], told: str) -> None:
    with pytest.raises(ApplicationError, match=told):
        load_application(application(tmp_path, **sink))


def test_secret_of_a_sink_is_read_on_the_host_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": "env:SINK_TOKEN"}
    loaded = load_application(
        application(tmp_path, type="http", url="env:SINK_URL", headers=headers)
    )
    [spec] = loaded.queries["all"].sinks
    with pytest.raises(ConfigError, match=r"env:SINK_\w+, which is missing; provide it"):
        plugin_options("all", spec, tmp_path)
    monkeypatch.setenv("SINK_URL", "http://localhost/rows")
    monkeypatch.setenv("SINK_TOKEN", "Bearer x")
    options = plugin_options("all", spec, tmp_path)
    assert options.model_dump()["headers"] == {"Authorization": "Bearer x"}
    monkeypatch.setenv("SINK_URL", "hunter2")
    with pytest.raises(ConfigError, match="url: ") as refused:
        plugin_options("all", spec, tmp_path)
    assert "hunter2" not in str(refused.value)


# -- beside other sinks ----------------------------------------------------------------------------


class Node:
    """One query with a broken and a working sink."""

    def __init__(self, directory: Path, url: str, how: str) -> None:
        self.directory, self.url = directory, url
        self.outbox = Outbox.open(directory / "outbox")
        self.ended: list[BaseException] = []
        self.sinks: dict[tuple[str, str], Sink] = {
            (QUERY, "broken"): self.sink("broken", {"how": how}),
            (QUERY, "lines"): self.sink("lines", {"directory": str(directory / "out")}),
        }
        self.publisher = Publisher(
            self.outbox,
            self.sinks,
            Granted(),
            on_published=lambda query, sink, batch: None,
            on_fenced=lambda epoch: None,
            group_id=lambda: GROUP,
            timing=Timing(call_timeout=0.5, backoff_max=0.1),
        )

    def sink(self, kind: str, options: dict[str, Any]) -> PluginSink:
        return plugin_sink(self.directory, self.url, kind, options)

    def admit(self, number: int) -> None:
        admit(self.outbox, self.directory / "outbox", number, pa.table({"n": [number]}))
        self.publisher.admitted(QUERY, number)

    def status(self, sink: str) -> SinkStatus:
        [found] = [status for status in self.publisher.status() if status.sink == sink]
        return found


@pytest.fixture
async def open_node(database_url: str, tmp_path: Path) -> AsyncIterator[Any]:
    nodes: list[Node] = []

    def opened(how: str) -> Node:
        nodes.append(Node(tmp_path, database_url, how))
        return nodes[-1]

    yield opened
    for node in nodes:
        await node.publisher.close()


@pytest.mark.parametrize(
    ("how", "state", "told"),
    [
        (
            "raises",
            SinkState.REFUSED,
            "failed in deliver of batch 1 in epoch 1: RuntimeError: out of luck",
        ),
        ("fences", SinkState.REFUSED, "failed in deliver of batch 1 in epoch 1: Fenced: "),
        ("hangs", SinkState.UNAVAILABLE, "did not finish deliver of batch 1 in epoch 1 in time"),
    ],
)
async def test_broken_sink_is_named_and_the_others_continue(
    open_node: Any, how: str, state: SinkState, told: str
) -> None:
    node = open_node(how)
    node.publisher.start(1)
    for number in (1, 2, 3):
        node.admit(number)
    await async_wait_until(lambda: node.status("lines").published_through == 3, within=20)
    await async_wait_until(lambda: told in (node.status("broken").error or ""), within=20)
    broken = node.status("broken")
    assert "sink broken of query delays, of type broken," in (broken.error or "")
    assert (broken.state, broken.published_through, broken.backlog) == (state, 0, 3)
    assert not node.publisher.failed.done()


@pytest.mark.parametrize("how", ["hangs", "hangs in close"])
async def test_hanging_sink_does_not_delay_a_demotion(open_node: Any, how: str) -> None:
    node = open_node(how)
    node.publisher.start(1)
    node.admit(1)
    await async_wait_until(lambda: node.status("lines").published_through == 1, within=20)
    async with asyncio.timeout(3):
        await node.publisher.stop()
    assert node.status("broken").state is SinkState.STOPPED


async def test_sink_slower_than_the_call_timeout_delivers_each_batch_once(open_node: Any) -> None:
    node = open_node("is slow")
    node.publisher.start(1)
    node.admit(1)
    await async_wait_until(lambda: node.status("broken").published_through == 1, within=20)
    assert node.sinks[QUERY, "broken"]._plugin.delivered == [1]


def test_late_delivery_of_an_earlier_epoch_stands_for_no_batch_of_the_next(
    database_url: str, tmp_path: Path
) -> None:
    """After a forced failover, batch 5 may have other rows than the batch 5 that was given up."""
    begun, let_go, delivered = threading.Event(), threading.Event(), list[int]()

    class Slow:
        def deliver(self, batch: OutputBatch) -> None:
            begun.set()
            let_go.wait(60)
            delivered.append(batch.rows)

        def close(self) -> None:
            pass

    place = SinkPlace("default", QUERY, "slow", lambda *_: None)
    ledger = LedgerStore(open_engine(database_url), LedgerKey("default", QUERY, "slow"), None)
    letters = SinkDeadLetters(tmp_path, QUERY, "slow")
    sink = PluginSink("slow", place, lambda: cast(SinkPlugin, Slow()), ledger, letters)
    (tmp_path / "given up").mkdir()
    sink.claim(1, 4, GROUP, soon())
    with pytest.raises(SinkUnavailable, match="did not finish deliver of batch 5"):
        sink.publish(5, batch_of(tmp_path / "given up", pa.table({"n": [1]}), 5), 1, soon(0.5))
    assert begun.is_set()
    let_go.set()
    assert sink.claim(3, 4, GROUP, soon()) == 4
    sink.publish(5, batch_of(tmp_path, pa.table({"n": [1, 2]}), 5), 3, soon(60.0))
    assert delivered == [1, 2]
    sink.close()


async def test_check_does_not_wait_for_a_hanging_sink(open_node: Any) -> None:
    node = open_node("hangs")
    node.publisher.start(1)
    node.admit(1)
    sink = node.sinks[QUERY, "broken"]
    await async_wait_until(lambda: sink._guard.busy, within=20)
    with pytest.raises(SinkUnavailable, match="busy"):
        sink.prepare(pa.schema({"n": pa.int64()}))
