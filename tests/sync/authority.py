"""Certificates for the tests, made with the openssl command."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CONFIG = """
[ca]
default_ca = tests
[tests]
database = {directory}/index.txt
new_certs_dir = {directory}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
"""
_EC = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_OF_AN_AUTHORITY = "basicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\n"


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates; its files lie in ``directory``.

    Its own certificate is valid for ``days`` from now on; with negative days it has expired.
    """

    def __init__(self, directory: Path, *, days: int = 60) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.key, self.certificate = directory / "ca.key", directory / "ca.pem"
        self._config = directory / "ca.cnf"
        self._config.write_text(_CONFIG.format(directory=directory))
        (directory / "index.txt").touch()
        request = self._request("ca", "test authority", _EC)
        begins = timedelta(days=min(0, 2 * days))
        self._sign("ca", request, _OF_AN_AUTHORITY, begins, timedelta(days=days), "-selfsign")

    def files(
        self,
        name: str,
        *,
        san: str | None = "",
        days: int = 40,
        begins_in_days: int = 0,
        use: str | None = None,
        rsa: bool = False,
    ) -> dict[str, str]:
        """Keys of ``event_sync.tls`` for ``name``; ``san`` None leaves the extension out.

        ``use`` is an extended key usage, such as ``clientAuth``. With negative ``days`` the
        certificate has expired.
        """
        request = self._request(name, name, ("rsa:2048",) if rsa else _EC)
        extensions = "" if san is None else f"subjectAltName={san or f'DNS:{name}'}\n"
        extensions += "" if use is None else f"extendedKeyUsage={use}\n"
        begins = timedelta(days=min(begins_in_days, 2 * days))
        signer = ("-cert", self.certificate)
        certificate = self._sign(name, request, extensions, begins, timedelta(days=days), *signer)
        key = self._directory / f"{name}.key"
        return {"certificate": str(certificate), "key": str(key), "ca": str(self.certificate)}

    def _request(self, name: str, common_name: str, kind: tuple[str, ...]) -> Path:
        key, request = self._directory / f"{name}.key", self._directory / f"{name}.csr"
        _openssl(
            "req", "-newkey", *kind, "-nodes", "-subj", f"/CN={common_name}", "-keyout", key,
            "-out", request,
        )  # fmt: skip
        return request

    def _sign(
        self,
        name: str,
        request: Path,
        extensions: str,
        begins: timedelta,
        ends: timedelta,
        *signer: object,
    ) -> Path:
        certificate, file = self._directory / f"{name}.pem", self._directory / f"{name}.ext"
        file.write_text(f"[extensions]\n{extensions}")
        # Begin a minute ago, since a certificate has whole seconds.
        now = datetime.now(UTC) - timedelta(minutes=1)
        dates = [f"{now + moment:%Y%m%d%H%M%SZ}" for moment in (begins, ends)]
        _openssl(
            "ca", "-batch", "-notext", "-config", self._config, "-keyfile", self.key, *signer,
            "-in", request, "-extfile", file, "-extensions", "extensions",
            "-startdate", dates[0], "-enddate", dates[1], "-out", certificate,
        )  # fmt: skip
        return certificate
