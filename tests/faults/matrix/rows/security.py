"""Certificates and tokens that are missing, wrong, expired or renewed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ha_engine.config.load import load_config
from ha_engine.doctor import peers
from ha_engine.doctor.finding import State
from tests.faults.matrix.credentials import Credentials
from tests.faults.matrix.hosts import TTL_SECONDS, HostedNode, holds
from tests.faults.matrix.load import STREAM
from tests.faults.matrix.needs import SECURE
from tests.faults.matrix.scene import (
    CALM_SECONDS,
    SYNC_SECONDS,
    TAKEOVER_SECONDS,
    Scene,
    row,
)
from tests.sync.authority import Authority

Files = Callable[[Credentials, str, Path], dict[str, str]]
"""Makes the files of a name in a directory."""
RELOADED = "config reloaded"


def _of_another_authority(credentials: Credentials, name: str, place: Path) -> dict[str, str]:
    ca = str(credentials.of_peers.certificate)
    return {**Authority(place / "another").files(name), "ca": ca}


def _expired(credentials: Credentials, name: str, place: Path) -> dict[str, str]:
    return credentials.of_peers.files(name, days=-1)


def _of_another_name(credentials: Credentials, name: str, place: Path) -> dict[str, str]:
    return credentials.issue("node-x")


WRONG: dict[str, Files] = {
    "of_another_authority": _of_another_authority,
    "that_has_expired": _expired,
    "of_another_name": _of_another_name,
}


def _credentials(scene: Scene) -> Credentials:
    assert scene.world.credentials is not None
    return scene.world.credentials


def _is_unprotected(node: HostedNode) -> bool:
    status = node.status()
    return status is not None and not status["protected"]


def _passive_shows(files: Files, scene: Scene) -> None:
    """The active continues alone, and takes the passive back once its certificate is right."""
    credentials, node = _credentials(scene), scene.passive
    wrong = files(credentials, node.name, scene.world.directory / "wrong")
    node.kill_everything()
    credentials.install(node.name, wrong)
    node.start()
    assert holds(lambda: _is_unprotected(scene.active), TAKEOVER_SECONDS)
    scene.last(scene.chance.uniform(1.0, 3.0) * TTL_SECONDS)
    assert _is_unprotected(scene.active), "a peer with a wrong certificate is in sync"
    node.kill_everything()
    credentials.install(node.name, credentials.issue(node.name))


for kind, files in WRONG.items():
    fault = partial(_passive_shows, files)
    row(SYNC_SECONDS, SECURE, operator=True, name=f"passive_shows_a_certificate_{kind}")(fault)


def _stranger(files: Files | None, scene: Scene) -> None:
    """Dial the active in the passive's place; ``files`` None is a stranger without TLS."""
    credentials, node = _credentials(scene), scene.passive
    section: dict[str, Any] = {"insecure": True, "tls": {}}
    if files is not None:
        section = {"tls": files(credentials, node.name, scene.world.directory / "wrong")}
    strange = load_config(node.config_for("stranger.yaml", event_sync=section), {})
    right = load_config(node.config_path, {})
    for _ in range(5):
        assert peers.event_sync(strange, scene.active.name).state is State.FAILED
        assert peers.event_sync(right, scene.active.name).state is State.OK
    assert not _is_unprotected(scene.active)


STRANGERS = {
    "without_a_certificate": None,
    "with_a_certificate_of_another_authority": _of_another_authority,
    "with_an_expired_certificate": _expired,
}
for kind, stranger in STRANGERS.items():
    fault = partial(_stranger, stranger)
    row(CALM_SECONDS, SECURE, name=f"stranger_{kind}")(fault)


@row(CALM_SECONDS, SECURE)
def callers_without_the_right_token(scene: Scene) -> None:
    """None sends an event or commands, over any of the ways to the active."""
    tokens = {None: 401, "Bearer another": 401, "Basic abc": 401}
    rows = [{"id": 0, "text": "stranger"}]
    for token, code in tokens.items():
        headers = {} if token is None else {"Authorization": token}
        with httpx.Client(base_url=scene.active.url, headers=headers) as http:
            for path in (f"/v1/streams/{STREAM}/events", "/v1/switchover", "/v1/snapshot"):
                assert http.post(path, json=rows).status_code == code
    headers = {"Authorization": f"Bearer {_credentials(scene).ingest}"}
    with httpx.Client(base_url=scene.active.url, headers=headers) as http:
        assert http.post("/v1/switchover").status_code == httpx.codes.FORBIDDEN
        event = scene.log.sent("producer with a token")
        rows = [{"id": event, "text": "producer with a token"}]
        sent = http.post(f"/v1/streams/{STREAM}/events", json=rows)
        assert sent.is_success
        scene.log.acked(event, sent.json()["position"]["epoch"])


def _reload(node: HostedNode) -> None:
    before = node.log_text().count(RELOADED)
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    assert holds(lambda: node.log_text().count(RELOADED) > before, TAKEOVER_SECONDS)


@row(SYNC_SECONDS, SECURE)
def renew_authority_certificates_and_tokens(scene: Scene) -> None:
    """Both nodes first trust both authorities, then show new certificates, then trust the new one
    only."""
    credentials, nodes = _credentials(scene), scene.chance.sample(scene.world.nodes, 2)
    fresh = Authority(scene.world.directory / f"authority-{scene.chance.randrange(1 << 30)}")
    both = fresh.certificate.with_name("both.pem")
    former = credentials.of_peers.certificate.read_text()
    both.write_text(former + fresh.certificate.read_text())
    token = f"new-token-{scene.chance.randrange(1 << 60)}"
    for node in nodes:
        node.reconfigure(access=credentials.access(newcomer=token))
        credentials.install(node.name, {"ca": str(both)})
        _reload(node)
    for node in nodes:
        credentials.install(node.name, {**fresh.files(node.name), "ca": str(both)})
    for node in nodes:
        credentials.install(node.name, {"ca": str(fresh.certificate)})
    credentials.of_peers = fresh
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=scene.active.url, headers=headers) as http:
        assert http.post("/v1/switchover").status_code == httpx.codes.FORBIDDEN
    scene.passive.kill("node")
    assert holds(lambda: scene.world.pair.whole() is scene.active, 2 * TAKEOVER_SECONDS)
