"""The doctor's checks of a peer: real connections to the sync stage of a real node."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from ha_engine.config import Config
from ha_engine.doctor import peers
from ha_engine.doctor.finding import Finding, State
from ha_engine.sync.hello import Hello
from tests.doctor.configs import config_in
from tests.e2e.node_under_test import free_port
from tests.programs import needs
from tests.sync.authority import Authority
from tests.sync.conftest import Make, make
from tests.sync.pair import SyncNode, plain

__all__ = ["make"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path)


def with_peer(config: Config, port: int, tls: dict[str, str] | None = None) -> Config:
    """Return the config of node-a, whose peer node-b listens on ``port``."""
    secured = {} if tls is None else {"insecure": False, "tls": tls}
    sync = plain({"node-b": port}, **secured)
    return config.model_copy(update={"event_sync": sync})


async def checked(config: Config) -> Finding:
    return await asyncio.to_thread(peers.event_sync, config, "node-b")


def said_by(config: Config, /, **others: object) -> dict[str, object]:
    """Return the fields of a Hello with which node-b fits the node of ``config``."""
    hello: Hello = peers._hello(with_peer(config, 1))
    fields = {name: getattr(hello, name) for name in ("application", "config", "runtime")}
    return {**fields, **others}


async def test_a_peer_that_fits_passes_and_opens_no_link(make: Make, config: Config) -> None:
    peer: SyncNode = await make("node-b", plain({"node-a": 1}), **said_by(config))
    finding = await checked(with_peer(config, peer.sync.port))
    assert finding.state is State.OK
    assert finding.text.endswith("runs ha-engine 0.1.0 and fits this node")
    assert (peer.links(), peer.sync.refusals()) == ([], {})


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"application": "b" * 32}, "node-b runs the application bbbbbbbb, but this node runs"),
        ({"config": "d" * 32}, "node-b has the group-wide settings dddddddd"),
        ({"runtime": {"python": "3.9"}}, "node-b has batch semantics none, java none"),
        ({"group": "other"}, "node-b is in group other, but this node is in test"),
        ({"protocol_min": 9, "protocol_max": 9}, "speaks versions 9 to 9 of the sync protocol"),
    ],
)
async def test_a_peer_that_does_not_fit_fails_with_the_reason(
    make: Make, config: Config, said: dict[str, object], text: str
) -> None:
    peer = await make("node-b", plain({"node-a": 1}), **said_by(config, **said))
    finding = await checked(with_peer(config, peer.sync.port))
    assert (finding.state, text in finding.text) == (State.FAILED, True)
    assert finding.remedy


async def test_another_node_at_the_address_of_the_peer_fails(make: Make, config: Config) -> None:
    peer = await make("node-x", plain({"node-a": 1}), **said_by(config))
    finding = await checked(with_peer(config, peer.sync.port))
    assert finding.text == "node-a expects node-b, but node-x is at the other end"


async def test_a_peer_with_an_invalid_hello_fails(make: Make, config: Config) -> None:
    peer = await make("node-b", plain({"node-a": 1}), **said_by(config, address="x" * 1000))
    finding = await checked(with_peer(config, peer.sync.port))
    assert finding.state is State.FAILED
    assert finding.text.endswith("does not answer like a node: the peer's Hello is too long")


async def test_a_peer_that_does_not_listen_is_a_warning(config: Config) -> None:
    finding = await checked(with_peer(config, free_port()))
    assert finding.state is State.WARNING
    assert finding.remedy == "start node-b, or correct event_sync.peers"


def test_a_peer_that_never_answers_fails(config: Config) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = with_peer(config, silent.getsockname()[1])
        finding = peers.event_sync(asked, "node-b", 0.2)
    assert finding.state is State.FAILED
    assert "this host does not reach node-b at 127.0.0.1:" in finding.text


@needs("openssl")
async def test_certificates_are_checked_by_the_peer_and_by_this_node(
    make: Make, config: Config, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    shown = {name: str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca")}

    def show(files: dict[str, str]) -> None:
        for name, path in files.items():
            shutil.copy(path, shown[name])

    show(authority.files("node-b"))
    listening = plain({"node-a": 1}, insecure=False, tls=shown)
    port = (await make("node-b", listening, **said_by(config))).sync.port
    ours = authority.files("node-a")
    assert (await checked(with_peer(config, port, ours))).state is State.OK
    plain_text = await checked(with_peer(config, port))
    assert plain_text.state is State.FAILED
    foreign = {**stranger.files("node-a"), "ca": ours["ca"]}
    assert (await checked(with_peer(config, port, foreign))).state is State.FAILED
    show(authority.files("node-x"))
    finding = await checked(with_peer(config, port, ours))
    assert "shows no certificate for node-b" in finding.text
    show(stranger.files("node-b"))
    finding = await checked(with_peer(config, port, ours))
    assert "has expired or is not signed by event_sync.tls.ca" in finding.text


def test_a_peer_whose_derived_address_does_not_answer_is_a_warning(config: Config) -> None:
    sync = plain({}).model_copy(update={"peers": {"node-b": f"127.0.0.2:{free_port()}"}})
    http = config.http.model_copy(update={"listen": f"127.0.0.1:{free_port()}"})
    asked = config.model_copy(update={"event_sync": sync, "http": http})
    finding = peers.http(asked, "node-b")
    assert finding.state is State.WARNING
    assert "the URL is derived from event_sync.peers" in finding.text
    finding = peers.reaches_us(asked, "node-b")
    assert (finding.state, finding.text) == (State.SKIPPED, "node-b does not answer over HTTP")


def test_an_http_address_that_no_node_has_reported_is_skipped(config: Config) -> None:
    sync = plain({"node-b": 1})
    finding = peers.http(config.model_copy(update={"event_sync": sync}), "node-b")
    assert finding.state is State.SKIPPED
