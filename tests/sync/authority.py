"""Certificates for the tests, made with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates; its files lie in ``directory``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.key, self.certificate = directory / "ca.key", directory / "ca.pem"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "30", "-subj", "/CN=test authority", "-keyout", self.key,
            "-out", self.certificate,
        )  # fmt: skip

    def files(
        self, name: str, *, san: str | None = "", days: int = 30, rsa: bool = False
    ) -> dict[str, str]:
        """Keys of ``event_sync.tls`` for ``name``; ``san`` None leaves the extension out."""
        kind = ("rsa:2048",) if rsa else ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        key, request = self._directory / f"{name}.key", self._directory / f"{name}.csr"
        certificate, extension = self._directory / f"{name}.pem", self._directory / f"{name}.ext"
        _openssl(
            "req", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}", "-keyout", key,
            "-out", request,
        )  # fmt: skip
        extension.write_text("" if san is None else f"subjectAltName={san or f'DNS:{name}'}\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
            "-CAcreateserial", "-days", days, "-extfile", extension, "-out", certificate,
        )  # fmt: skip
        return {"certificate": str(certificate), "key": str(key), "ca": str(self.certificate)}
