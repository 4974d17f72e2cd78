"""Links between two real EventSync objects on loopback: dialling, lost peers, refusals."""

from __future__ import annotations

import pytest

from ha_engine.core import inputs as on
from ha_engine.core.messages import Heartbeat, Probe
from ha_engine.sync.grpc_transport import GrpcTransport
from ha_engine.sync.hello import to_sync_frame
from ha_engine.sync.wire import WireBroken
from ha_engine.v1 import sync_pb2 as pb
from tests.sync.conftest import Make
from tests.sync.pair import SyncNode, hello, plain
from tests.sync.proxy import Proxy
from tests.waiting import async_wait_until

Pair = tuple[SyncNode, SyncNode]


async def test_two_nodes_connect_and_deliver_messages_in_order(pair: Pair) -> None:
    a, b = pair
    for number in range(500):
        a.send("node-b", Heartbeat(1, number))
        b.send("node-a", Probe(number))
    await async_wait_until(lambda: len(a.heard()) == 500 == len(b.heard()))
    assert b.heard() == [Heartbeat(1, number) for number in range(500)]
    assert a.heard() == [Probe(number) for number in range(500)]
    assert a.links() == [on.PeerConnected("node-b")]
    assert b.links() == [on.PeerConnected("node-a")]


async def test_group_of_one_opens_no_port(make: Make) -> None:
    alone = await make("node-a", plain({}))
    alone.send("node-b", Probe(1))
    alone.stream("node-b")
    assert alone.sync.port == 0
    assert alone.sync.refusals() == {}


async def test_only_the_node_with_the_smaller_id_dials(make: Make, proxy: Proxy) -> None:
    a = await make("node-a", plain({"node-b": 1}))
    proxy.target = a.sync.port
    b = await make("node-b", plain({"node-a": proxy.port}))
    await async_wait_until(lambda: "node-b" in a.sync.unreachable())
    assert proxy.accepted == 0
    assert not b.sync.unreachable()


async def test_three_nodes_link_with_each_other(make: Make) -> None:
    c = await make("node-c", plain({"node-a": 1, "node-b": 1}))
    b = await make("node-b", plain({"node-a": 1, "node-c": c.sync.port}))
    a = await make("node-a", plain({"node-b": b.sync.port, "node-c": c.sync.port}))
    await async_wait_until(
        lambda: all(
            traffic.connected for node in (a, b, c) for traffic in node.sync.traffic().values()
        )
    )
    a.send("node-c", Probe(7))
    await async_wait_until(lambda: c.heard() == [Probe(7)])
    assert b.heard() == []


async def test_both_nodes_report_a_cut_link_once_and_reconnect(pair: Pair, proxy: Proxy) -> None:
    a, b = pair
    proxy.cut()
    for node, peer in ((a, "node-b"), (b, "node-a")):
        await async_wait_until(lambda node=node: len(node.links()) == 3)
        connected, lost, again = node.links()
        assert connected == again == on.PeerConnected(peer)
        assert isinstance(lost, on.PeerLost)
        assert lost.peer == peer
        assert lost.reason
    a.send("node-b", Probe(3))
    await async_wait_until(lambda: b.heard() == [Probe(3)])


async def test_returning_peer_is_linked_within_half_a_second(pair: Pair, proxy: Proxy) -> None:
    a, b = pair
    proxy.refusing = True
    proxy.cut()
    await async_wait_until(lambda: proxy.accepted >= 8, within=30)
    assert not a.connected("node-b")
    assert a.sync.unreachable()["node-b"]
    before = proxy.accepted
    proxy.refusing = False
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"), within=3)
    assert proxy.accepted <= before + 2
    assert a.sync.unreachable() == {}


async def test_both_nodes_lose_the_peer_on_a_silent_network(make: Make, proxy: Proxy) -> None:
    quick = {"sync_timeout": "600ms", "heartbeat_interval": "100ms"}
    b = await make("node-b", plain({"node-a": 1}, **quick))
    proxy.target = b.sync.port
    a = await make("node-a", plain({"node-b": proxy.port}, **quick))
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))
    proxy.stop()
    await async_wait_until(lambda: not a.connected("node-b") and not b.connected("node-a"))
    proxy.go_on()
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))


async def test_new_process_connects_once_the_link_of_the_old_one_is_silent(
    make: Make, proxy: Proxy
) -> None:
    """The old link is not closed, since a host that lost its power closes nothing."""
    quick = {"sync_timeout": "600ms", "heartbeat_interval": "100ms"}
    b = await make("node-b", plain({"node-a": 1}, **quick))
    proxy.target = b.sync.port
    await make("node-a", plain({"node-b": proxy.port}, **quick))
    await async_wait_until(lambda: b.connected("node-a"))
    proxy.stop()
    addresses = plain({"node-b": b.sync.port}, **quick)
    second = await make("node-a", addresses, "second", process="another")
    await async_wait_until(lambda: second.connected("node-b") and b.connected("node-a"))
    links = [type(event) for event in b.links()]
    assert links == [on.PeerConnected, on.PeerLost, on.PeerConnected]
    heard = len(b.heard())
    second.send("node-b", Probe(9))
    await async_wait_until(lambda: Probe(9) in b.heard()[heard:])


async def test_a_message_of_a_replaced_link_is_not_delivered(
    pair: Pair, make: Make, proxy: Proxy
) -> None:
    """The first link is silent with a message on its way; then a second link opens."""
    a, b = pair
    proxy.stop()
    before = a.sync.traffic()["node-b"].messages_sent
    a.send("node-b", Probe(666))
    await async_wait_until(lambda: a.sync.traffic()["node-b"].messages_sent > before)
    second = await make("node-a", plain({"node-b": b.sync.port}), "second")
    await async_wait_until(lambda: len(b.links()) == 3)
    proxy.go_on()

    def heard_from_second() -> bool:
        # A message is lost while the first node, which dials again, has the link.
        second.send("node-b", Probe(1))
        return Probe(1) in b.heard()

    await async_wait_until(heard_from_second)
    assert Probe(666) not in b.heard()


async def test_stopped_sync_delivers_no_more_inputs_to_the_core(pair: Pair) -> None:
    a, b = pair
    await b.sync.stop()
    await async_wait_until(lambda: not a.connected("node-b"))
    assert b.links() == [on.PeerConnected("node-a")]


# -- refusals --------------------------------------------------------------------------------------

OTHERS = [
    ({"group": "prod"}, "is in group prod"),
    ({"group_id": "22222222-x"}, "has the id 22222222 for group test, but this node has 11111111"),
    ({"protocol_min": 2, "protocol_max": 3}, "speaks versions 2 to 3 of the sync protocol"),
    ({"application": "b" * 32}, "runs the application bbbbbbbb, but this node runs aaaaaaaa"),
    ({"config": "d" * 32}, "has the group-wide settings dddddddd, but this node has cccccccc"),
    (
        {"runtime": {"python": "3.11.7", "spark": "4.4.0"}},
        "has spark 4.4.0, but this node has spark 4.3.0",
    ),
]


@pytest.mark.parametrize(("other", "sentence"), OTHERS)
async def test_both_nodes_refuse_a_mismatched_peer_and_say_what_to_do(
    make: Make, other: dict[str, object], sentence: str
) -> None:
    b = await make("node-b", plain({"node-a": 1}), **{"group_id": "11111111-y", **other})
    a = await make("node-a", plain({"node-b": b.sync.port}), group_id="11111111-y")
    await async_wait_until(lambda: a.sync.refusals() and b.sync.refusals())
    assert sentence in a.sync.refusals()["node-b"]
    assert ";" in a.sync.refusals()["node-b"]
    assert b.sync.refusals()["node-a"].startswith("node-a ")
    assert a.links() == [] == b.links()


async def test_unknown_group_id_causes_no_refusal(make: Make) -> None:
    b = await make("node-b", plain({"node-a": 1}), group_id="11111111")
    a = await make("node-a", plain({"node-b": b.sync.port}))
    await async_wait_until(lambda: a.connected("node-b"))


async def test_group_id_that_later_differs_ends_the_link(make: Make) -> None:
    """Two nodes that start at once on two databases learn the difference only later."""
    b = await make("node-b", plain({"node-a": 1}))
    a = await make("node-a", plain({"node-b": b.sync.port}))
    await async_wait_until(lambda: a.connected("node-b") and b.connected("node-a"))
    for node, group_id in ((a, "aaaaaaaa"), (b, "bbbbbbbb")):
        node.say(group_id=group_id)
    a.sync.introduce()
    await async_wait_until(lambda: a.sync.refusals() and b.sync.refusals())
    assert "set database.url to the same database" in b.sync.refusals()["node-a"]
    assert not a.connected("node-b")


async def test_two_nodes_with_the_same_id_refuse_each_other(make: Make) -> None:
    twin = await make("node-a", plain({"node-0": 1}), "twin")
    a = await make("node-a", plain({"node-b": twin.sync.port}))
    await async_wait_until(lambda: a.sync.refusals() and twin.sync.refusals())
    assert "calls itself node-a, like this one" in a.sync.refusals()["node-b"]
    assert "calls itself node-a, like this one" in twin.sync.refusals()["node-a"]


async def test_peer_with_the_id_of_another_live_peer_is_refused_and_named(make: Make) -> None:
    """Two hosts with one node.id must not end each other's links for ever. Nothing but the removal
    of one of them is needed from an operator."""
    b = await make("node-b", plain({"node-a": 1}))
    addresses = plain({"node-b": b.sync.port})
    first = await make("node-a", addresses, process="first")
    await async_wait_until(lambda: b.connected("node-a"))
    second = await make("node-a", addresses, "twin", process="second")
    await async_wait_until(lambda: "node-b" in second.sync.refusals())
    assert "two hosts use one node.id" in second.sync.refusals()["node-b"]
    assert "two hosts use one node.id" in b.sync.refusals()["node-a"]
    assert first.connected("node-b")
    assert b.sync.traffic()["node-a"].links == 1
    await first.sync.stop()
    await async_wait_until(lambda: second.connected("node-b") and b.connected("node-a"))


async def test_peer_that_greets_slowly_does_not_replace_another_process_of_its_node(
    make: Make,
) -> None:
    b = await make("node-b", plain({"node-a": 1}))
    addresses = plain({"node-b": b.sync.port})
    async with GrpcTransport(addresses).connect("node-b", 4.0) as wire:
        await wire.write(to_sync_frame(hello("node-a", process="slow")))
        assert (await wire.read()).HasField("hello")
        assert (await wire.read()).HasField("welcome")
        first = await make("node-a", addresses, process="first")
        await async_wait_until(lambda: b.connected("node-a") and first.connected("node-b"))
        await wire.write(pb.SyncFrame(welcome=pb.Welcome()))
        with pytest.raises(WireBroken):
            await wire.read()
    assert b.links() == [on.PeerConnected("node-a")]
    assert first.connected("node-b")


async def test_nodes_with_copies_of_one_data_directory_refuse_each_other(make: Make) -> None:
    b = await make("node-b", plain({"node-a": 1}))
    a = await make("node-a", plain({"node-b": b.sync.port}), journal_id=b.said.journal_id)
    await async_wait_until(lambda: a.sync.refusals() and b.sync.refusals())
    for node, peer in ((a, "node-b"), (b, "node-a")):
        assert "one data directory is a copy of the other" in node.sync.refusals()[peer]


async def test_node_refuses_a_stranger_with_a_reason(make: Make) -> None:
    b = await make("node-b", plain({"node-0": 1}))
    a = await make("node-a", plain({"node-b": b.sync.port}))
    await async_wait_until(lambda: a.sync.refusals() and b.sync.refusals())
    assert b.sync.refusals()["node-a"].startswith("node-b expects node-0, but node-a is at")
    assert a.sync.refusals()["node-b"].startswith(
        "node-b refuses this node and says: node-b expects node-0"
    )


async def test_node_refuses_another_node_at_the_address_of_a_peer(make: Make) -> None:
    c = await make("node-c", plain({"node-a": 1}))
    a = await make("node-a", plain({"node-b": c.sync.port}))
    await async_wait_until(lambda: a.sync.refusals())
    assert "node-a expects node-b, but node-c is at the other end" in a.sync.refusals()["node-b"]


async def test_refusal_is_logged_once_and_ends_with_its_reason(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    b = await make("node-b", plain({"node-a": 1}), config="d" * 32)
    a = await make("node-a", plain({"node-b": b.sync.port}))
    await async_wait_until(lambda: a.sync.refusals() and b.sync.refusals())
    asked = b.asked
    await async_wait_until(lambda: b.asked >= asked + 8, within=30)
    assert capsys.readouterr().out.count("peer refused") == 2
    b.say(config=a.said.config)
    await async_wait_until(lambda: a.connected("node-b"))
    assert a.sync.refusals() == {} == b.sync.refusals()
