"""Mutual TLS with real certificates: accepted and refused nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ha_engine.config import EventSyncConfig
from ha_engine.core.messages import Probe
from ha_engine.errors import AddressInUse, ConfigError
from tests.sync.authority import Authority
from tests.sync.conftest import Make
from tests.sync.pair import SyncNode, plain
from tests.waiting import async_wait_until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def secured(peers: dict[str, int], files: dict[str, str]) -> EventSyncConfig:
    return plain(peers, insecure=False, tls=files)


async def reached(make: Make, b: EventSyncConfig, files: dict[str, str] | None) -> SyncNode:
    """Return node-a with ``files``, which dials a node-b of the config ``b``."""
    listening = await make("node-b", b)
    peers = {"node-b": listening.sync.port}
    return await make("node-a", plain(peers) if files is None else secured(peers, files))


async def test_nodes_with_certificates_of_their_names_connect(
    make: Make, authority: Authority
) -> None:
    b = secured({"node-a": 1}, authority.files("node-b"))
    a = await reached(make, b, authority.files("node-a"))
    await async_wait_until(lambda: a.connected("node-b"))


async def test_common_name_counts_in_a_certificate_without_alternative_names(
    make: Make, authority: Authority
) -> None:
    b = secured({"node-a": 1}, authority.files("node-b", san=None))
    a = await reached(make, b, authority.files("node-a", san=None))
    await async_wait_until(lambda: a.connected("node-b"))


async def test_a_caller_with_another_nodes_certificate_is_refused_with_the_reason(
    make: Make, authority: Authority
) -> None:
    b = await make("node-b", secured({"node-a": 1}, authority.files("node-b")))
    a = await make("node-a", secured({"node-b": b.sync.port}, authority.files("node-x")))
    await async_wait_until(lambda: b.sync.refusals() and a.sync.refusals())
    assert "calls itself node-a shows a certificate for node-x" in b.sync.refusals()["node-a"]
    assert a.sync.refusals()["node-b"].startswith("node-b refuses this node and says: a node that")
    assert b.links() == [] == a.links()


async def test_common_name_does_not_count_beside_alternative_names(
    make: Make, authority: Authority
) -> None:
    b = await make("node-b", secured({"node-a": 1}, authority.files("node-b")))
    files = authority.files("node-a", san="DNS:node-x")
    await make("node-a", secured({"node-b": b.sync.port}, files))
    await async_wait_until(lambda: b.sync.refusals())
    assert "certificate for node-x" in b.sync.refusals()["node-a"]


async def test_caller_refuses_a_listener_with_the_certificate_of_another_node(
    make: Make, authority: Authority
) -> None:
    b = secured({"node-a": 1}, authority.files("node-x"))
    a = await reached(make, b, authority.files("node-a"))
    await async_wait_until(lambda: a.sync.refusals())
    assert "shows no certificate for node-b" in a.sync.refusals()["node-b"]
    assert a.links() == []


async def test_certificate_of_another_authority_is_refused(
    make: Make, authority: Authority, stranger: Authority
) -> None:
    b = await make("node-b", secured({"node-a": 1}, authority.files("node-b")))
    foreign = stranger.files("node-a")
    trusting = {**foreign, "ca": str(authority.certificate)}
    distrusting = await make("node-a", secured({"node-b": b.sync.port}, foreign))
    distrusted = await make("node-a", secured({"node-b": b.sync.port}, trusting), "a2")
    await async_wait_until(lambda: distrusting.sync.refusals() and distrusted.sync.unreachable())
    assert "is not signed by event_sync.tls.ca" in distrusting.sync.refusals()["node-b"]
    assert b.inputs == []
    assert b.asked <= 1  # the start of node-b itself: no caller reached a greeting


async def test_plain_text_and_tls_nodes_do_not_connect(make: Make, authority: Authority) -> None:
    a = await reached(make, secured({"node-a": 1}, authority.files("node-b")), None)
    other = await make("node-d", plain({"node-c": 1}))
    c = await make("node-c", secured({"node-d": other.sync.port}, authority.files("node-c")))
    await async_wait_until(lambda: a.sync.unreachable() and c.sync.refusals())
    assert "uses plain text, but this node uses TLS" in c.sync.refusals()["node-d"]
    assert a.links() == [] == c.links()


async def test_node_loads_new_certificates_without_a_restart(
    make: Make, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """Start node-b with a certificate that node-a does not trust."""
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "ca")}

    def put(made: dict[str, str]) -> None:
        for name, path in made.items():
            shutil.copy(path, files[name])

    put(stranger.files("node-b"))
    b = secured({"node-a": 1}, {name: str(path) for name, path in files.items()})
    a = await reached(make, b, authority.files("node-a"))
    await async_wait_until(lambda: a.sync.refusals())
    put(authority.files("node-b"))
    await async_wait_until(lambda: a.connected("node-b"))
    a.send("node-b", Probe(1))


async def test_missing_tls_file_is_refused_at_start(make: Make, authority: Authority) -> None:
    files = {**authority.files("node-a"), "key": "/nowhere/a.key"}
    with pytest.raises(ConfigError, match=r"event_sync\.tls\.key: /nowhere/a\.key cannot be read"):
        await make("node-a", secured({"node-b": 1}, files))


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
async def test_tls_file_with_other_content_is_refused_at_start(
    make: Make, authority: Authority, tmp_path: Path, name: str
) -> None:
    other = tmp_path / "other.pem"
    other.write_text("no certificate, and no key")
    files = {**authority.files("node-a"), name: str(other)}
    with pytest.raises(ConfigError, match=r"^event_sync\.tls\b.*other\.pem"):
        await make("node-a", secured({"node-b": 1}, files))


async def test_address_in_use_is_refused_at_start(make: Make) -> None:
    a = await make("node-a", plain({"node-b": 1}))
    with pytest.raises(AddressInUse, match="is in use"):
        await make("node-b", plain({"node-a": 1}, port=a.sync.port))
