"""HTTP and gRPC with a certificate: callers that trust its authority connect, plain callers do
not."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ha_engine.api import handshakes
from ha_engine.api.connection import ConnectionPool
from ha_engine.api.handshakes import HANDSHAKES_MAX
from ha_engine.api.server import WebServer
from ha_engine.client.admin import fetch_cluster
from ha_engine.client.producer import Producer
from ha_engine.client.token import authorization, require_as_safe
from ha_engine.config import HttpConfig
from ha_engine.config.load import load_config
from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError, DeliveryFailed, NodeUnreachable
from tests.client.serving import running, serving, web_server
from tests.client.test_producer import Node, events
from tests.programs import needs
from tests.still_node import still_node
from tests.sync.authority import Authority
from tests.waiting import wait_until

pytestmark = needs("openssl")
TOKENS = "access: {admin: {alice: " + "ab" * 32 + "}, ingest: {bob: " + "cd" * 32 + "}}"
TLS = "tls: {certificate: a.pem, key: a.key}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ServerTls:
    files = authority.files("node-a", san="IP:127.0.0.1")
    return ServerTls(certificate=Path(files["certificate"]), key=Path(files["key"]))


def test_commands_reach_a_node_whose_authority_they_trust(
    authority: Authority, tls: ServerTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(still_node(), tls) as url:
        assert url.startswith("https://")
        with pytest.raises(NodeUnreachable, match="certificate"):
            fetch_cluster(url)
        with pytest.raises(NodeUnreachable):
            fetch_cluster(url.replace("https", "http"))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert fetch_cluster(url) == {}


def test_producers_over_grpc_reach_a_node_whose_authority_they_trust(
    tmp_path: Path, authority: Authority, tls: ServerTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "a", scheme="grpcs://", tls=tls)
    try:
        for url in (node.url, node.url.replace("grpcs", "grpc")):
            with pytest.raises(DeliveryFailed), Producer([url], deadline=0.5) as stranger:
                stranger.send("flights", events(1))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        with Producer([node.url]) as producer:
            producer.send("flights", events(2))
        assert node.flights() == [2]
    finally:
        node.stop()


def test_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.files("renewed", san="IP:127.0.0.1")
    tls = ServerTls(certificate=Path(files["certificate"]), key=Path(files["key"]))
    server = web_server(still_node(), HttpConfig(tls=tls))
    node = Node(tmp_path / "a", scheme="grpcs://", tls=tls)
    other = Authority(tmp_path / "other")
    # A live context that had loaded both would keep using the old one, which is of another kind.
    renewed = other.files("renewed", san="IP:127.0.0.1", rsa=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(other.certificate))
    try:
        with running(server, "https") as url:
            with pytest.raises(NodeUnreachable, match="certificate"):
                fetch_cluster(url)
            for name in ("certificate", "key"):
                shutil.copyfile(renewed[name], files[name])
            server.renew_certificate()
            assert fetch_cluster(url) == {}
            Path(files["key"]).write_text("no key")
            with pytest.raises(ConfigError, match=r"http\.tls"):
                server.renew_certificate()
            assert fetch_cluster(url) == {}
        # Each connection to ingest checked the files itself; it ignores unreadable files.
        with pytest.raises(DeliveryFailed), Producer([node.url], deadline=0.5) as producer:
            producer.send("flights", events(1))
        shutil.copyfile(renewed["key"], files["key"])
        with Producer([node.url]) as producer:
            producer.send("flights", events(2))
        assert node.flights() == [2]
    finally:
        node.stop()


def test_a_key_of_another_certificate_is_refused_at_start(
    authority: Authority, tls: ServerTls
) -> None:
    other = ServerTls(certificate=tls.certificate, key=Path(authority.files("other")["key"]))
    with pytest.raises(ConfigError, match=r"http\.tls"):
        web_server(still_node(), HttpConfig(tls=other))


@pytest.mark.parametrize("door", ["http", "ingest"])
@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("", "does not encrypt"),
        (TLS, r"access\.ingest has no token"),
        ("tls: {certificate: a.pem}", "name the certificate and its key"),
    ],
)
def test_other_hosts_need_encryption_and_tokens(
    tmp_path: Path, door: str, written: str, problem: str
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"{door}: {{{', '.join(filter(None, ['listen: 10.0.0.1:80', written]))}}}")
    with pytest.raises(ConfigError, match=problem):
        load_config(file, {})
    file.write_text(f"{door}: {{listen: '10.0.0.1:80', {TLS}}}\n{TOKENS}")
    assert load_config(file, {}).access.admin


def test_callers_of_a_node_with_tls_follow_no_plain_text_address() -> None:
    given = ServerTls(certificate=Path("a.pem"), key=Path("a.key"))
    with pytest.raises(ValueError, match="https://"):
        HttpConfig(tls=given, advertise="http://10.0.0.1:8080")
    assert require_as_safe("http://a:1", "http://b:1") == "http://b:1"
    assert require_as_safe("https://a:1", "https://b:1") == "https://b:1"
    for asked, named in (("https://a:1", "http://b:1"), ("grpcs://a:1", "grpc://b:1")):
        with pytest.raises(NodeUnreachable, match="does not encrypt"):
            require_as_safe(asked, named)


@pytest.mark.parametrize("held", ["token abc\nsha256 def", "töken"])
def test_malformed_token_is_refused_and_not_shown(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HA_ENGINE_TOKEN", held)
    with pytest.raises(ConfigError) as refused:
        authorization()
    assert held not in str(refused.value)


def test_url_of_a_node_with_tls_has_the_https_scheme() -> None:
    given = ServerTls(certificate=Path("a.pem"), key=Path("a.key"))
    assert HttpConfig(tls=given).url == "https://127.0.0.1:8080"
    assert HttpConfig().url == "http://127.0.0.1:8080"


@pytest.mark.parametrize("greeting", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "plain text"])
def test_handshakes_that_never_end_are_bounded(
    tls: ServerTls, authority: Authority, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    closed = Counter[str]()
    http = HttpConfig(tls=tls)
    monkeypatch.setattr(handshakes, "WITHIN_SECONDS", 1000.0)
    server = WebServer(still_node(), http, ConnectionPool(http.max_connections, closed))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with running(server, "https") as url, contextlib.ExitStack() as opened:
        address = urlsplit(url)
        for _ in range(HANDSHAKES_MAX + 10):
            stranger = socket.create_connection((address.hostname, address.port))
            opened.enter_context(stranger).sendall(greeting)
        wait_until(lambda: closed["handshake"] >= 10)
        assert fetch_cluster(url) == {}


def test_idle_connections_with_tls_give_way_at_once(
    tls: ServerTls, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orderly end of TLS would wait for the client, which answers nothing."""
    closed = Counter[str]()
    server = WebServer(still_node(), HttpConfig(tls=tls), ConnectionPool(2, closed))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    trusting = ssl.create_default_context(cafile=authority.certificate)
    with running(server, "https") as url, contextlib.ExitStack() as opened:
        address = urlsplit(url)
        for _ in range(10):
            idle = socket.create_connection((address.hostname, address.port))
            opened.enter_context(trusting.wrap_socket(idle, server_hostname=address.hostname))
        wait_until(lambda: closed["displaced"] == 8)
        wait_until(lambda: server.open_connections == 2)
        assert fetch_cluster(url) == {}
