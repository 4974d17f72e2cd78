"""Certificates and tokens of a world whose nodes and clients must prove who they are."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ha_engine.auth import digest_of
from ha_engine.client.token import TOKEN_VARIABLE
from tests.sync.authority import Authority

_FILES = ("certificate", "key", "ca")


class Credentials:
    """The files of each node are below ``directory``, where a fault may replace them. ``authority``
    signs the certificates of the HTTP interfaces, ``of_peers`` those that the nodes show to each
    other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = self.of_peers = Authority(directory / "authority")
        self.admin, self.ingest = (secrets.token_urlsafe(32) for _ in range(2))

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the clients and commands of this process trust the authority, and send the token of
        an administrator."""
        former = dict(os.environ)
        os.environ["SSL_CERT_FILE"] = str(self.authority.certificate)
        os.environ[TOKEN_VARIABLE] = self.admin
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(former)

    def issue(self, name: str) -> dict[str, str]:
        """Return the files with which ``name`` proves its identity to its peer."""
        return self.of_peers.files(name)

    def install(self, name: str, files: dict[str, str]) -> dict[str, str]:
        """Copy ``files`` to where the node ``name`` reads its own; return these."""
        place = self._directory / name
        place.mkdir(exist_ok=True)
        shown = {key: str(place / f"{key}.pem") for key in _FILES}
        for key, path in files.items():
            shutil.copy(path, shown[key])
        return shown

    def sections(self, name: str, address: str) -> dict[str, Any]:
        """Return the sections of the config of the node ``name``."""
        server = self.authority.files(f"{name}-http", san=f"IP:{address}")
        return {
            "http": {
                "insecure": False,
                "tls": {key: server[key] for key in ("certificate", "key")},
            },
            "event_sync": {"insecure": False, "tls": self.install(name, self.issue(name))},
            "access": self.access(),
        }

    def access(self, **ingest: str) -> dict[str, Any]:
        """Return the section with the tokens, and further ones of producers by name."""
        tokens = {"producer": self.ingest, **ingest}
        return {
            "admin": {"operator": digest_of(self.admin)},
            "ingest": {name: digest_of(token) for name, token in tokens.items()},
        }
