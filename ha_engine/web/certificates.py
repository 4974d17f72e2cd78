"""Check the certificates in the config as peers and clients check them, before they connect.

The check is a TLS handshake in memory. OpenSSL therefore decides about the chain, the use and the
names of a certificate, as it does for a connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ha_engine.config import Config
from ha_engine.config.ingest import DEFAULT_LISTEN
from ha_engine.config.quantities import split_address
from ha_engine.config.server_tls import ServerTls
from ha_engine.errors import ConfigError

SOON = timedelta(days=30)
"""A certificate that expires within this time needs a renewal."""
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ``ssl`` does not name."""
_WRONG_USE, _WRONG_HOST, _WRONG_ADDRESS = 26, 62, 64
"""OpenSSL's codes X509_V_ERR_INVALID_PURPOSE, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


class Use(Enum):
    """The end of a connection at which a node presents a certificate."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Presented:
    """A certificate of the config, and what its readers expect of it.

    Peers expect a certificate that ``ca`` has signed and that contains exactly ``name``. Without
    ``ca``, clients decide whom they trust, and ``name`` is a host name or an IP address.
    """

    section: str
    certificate: Path
    key: Path
    ca: Path | None
    name: str
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a certificate. If ``is_error`` is False, the certificate still works."""

    text: str
    remedy: str
    is_error: bool = True


@dataclass(frozen=True, slots=True)
class Inspected:
    """The names and the last day of a certificate, and its problems."""

    names: tuple[str, ...]
    ends: datetime | None
    problems: tuple[Problem, ...]


def presented(config: Config) -> list[Presented]:
    """The certificates that the config names."""
    found, sync = [], config.event_sync.tls
    if sync.certificate and sync.key:
        uses = (Use.SERVER, Use.CLIENT)
        name = config.node.id
        found.append(Presented("event_sync.tls", sync.certificate, sync.key, sync.ca, name, uses))
    ingest = config.ingest.advertise or config.ingest.listen or DEFAULT_LISTEN
    hosts: dict[str, tuple[ServerTls, str]] = {
        "http.tls": (config.http.tls, urlsplit(config.http.url).hostname or ""),
        "ingest.tls": (config.ingest.tls, split_address(ingest)[0]),
    }
    if config.execution.on_cluster:
        host = split_address(config.execution.address)[0]
        hosts["execution.tls"] = (config.execution.tls, host)
    for section, (tls, host) in hosts.items():
        if tls.pair:
            found.append(Presented(section, *tls.pair, None, host, (Use.SERVER,)))
    return found


def require_sound(one: Presented) -> None:
    """Raise ConfigError with one line for each problem with which no connection would work."""
    problems = inspect(one, datetime.now(UTC)).problems
    if errors := [f"{one.section}: {p.text}; {p.remedy}" for p in problems if p.is_error]:
        raise ConfigError("\n".join(errors))


def inspect(one: Presented, now: datetime) -> Inspected:
    """Check names, dates, use and chain of a certificate, and the rights of its key.

    The files must be readable, and the key must belong to the certificate; see ``server_context``.
    """
    details = _details(one)
    if details is None:
        return Inspected((), None, (_unusable(one, one.uses),))
    names, ends = _names(details), _time(details["notAfter"])
    found = [*_of_dates(one, details, now), *_of_name(one, names), *_of_chain(one)]
    if not any(problem.is_error for problem in found):
        found += _of_authority(one, details, now)
    found += _of_key(one)
    return Inspected(names, ends, tuple(found))


# -- the checks ------------------------------------------------------------------------------------


def _of_dates(one: Presented, details: dict[str, Any], now: datetime) -> Iterator[Problem]:
    begins, ends = _time(details["notBefore"]), _time(details["notAfter"])
    if now < begins:
        yield Problem(
            f"{one.certificate} is not valid before {_day(begins)}",
            "correct the clock of this host, or replace the certificate",
        )
    elif now > ends:
        yield Problem(f"{one.certificate} expired on {_day(ends)}", "replace the certificate")
    elif now > ends - SOON:
        yield Problem(
            f"{one.certificate} expires on {_day(ends)}, in {(ends - now).days} days",
            "replace the certificate before that day",
            is_error=False,
        )


def _of_name(one: Presented, names: tuple[str, ...]) -> Iterator[Problem]:
    shown = ", ".join(names) or "no name"
    if one.ca is None:
        if _error(one, Use.SERVER, host=one.name) in (_WRONG_HOST, _WRONG_ADDRESS):
            yield Problem(
                f"{one.certificate} is for {shown}, but this node advertises {one.name}",
                "add the host name or IP address to the certificate, or correct 'advertise'",
            )
    elif one.name not in names:
        yield Problem(
            f"{one.certificate} is for {shown}, but node.id is {one.name}",
            "give the node a certificate whose subject alternative names contain its node.id",
        )


def _of_chain(one: Presented) -> Iterator[Problem]:
    errors = {use: _error(one, use) for use in one.uses}
    if wrong := tuple(use for use in one.uses if errors[use] == _WRONG_USE):
        yield _unusable(one, wrong)
    elif one.ca is not None and any(errors.values()):
        yield Problem(
            f"{one.certificate} is not signed by {one.ca}",
            "use a certificate that this authority has signed, or correct event_sync.tls.ca",
        )


def _of_authority(one: Presented, details: dict[str, Any], now: datetime) -> Iterator[Problem]:
    """The problems of the dates of the authority, for a certificate without an error."""
    if one.ca is None:
        return
    if _error(one, Use.SERVER, check_time=True):
        yield Problem(
            f"an authority that signed {one.certificate} has expired, or is not valid yet",
            f"replace {one.ca} and the certificates of all nodes",
        )
        return
    context = ssl.create_default_context(cafile=one.ca)
    signers = [ca for ca in context.get_ca_certs() if ca["subject"] == details["issuer"]]
    ends = max((_time(str(ca["notAfter"])) for ca in signers), default=None)
    if ends is not None and now > ends - SOON:
        yield Problem(
            f"the authority {one.ca} expires on {_day(ends)}, in {(ends - now).days} days",
            "make a new authority, and replace the certificates of all nodes before that day",
            is_error=False,
        )


def _of_key(one: Presented) -> Iterator[Problem]:
    if one.key.stat().st_mode & 0o007:
        text = f"every user of this host may use the private key {one.key}"
        yield Problem(text, f"chmod 0640 {one.key}", is_error=False)


def _unusable(one: Presented, uses: tuple[Use, ...]) -> Problem:
    return Problem(
        f"{one.certificate} is not valid for a {' or a '.join(use.value for use in uses)}",
        "replace it by a certificate whose extended key usage permits "
        + " and ".join(f"{use.value}Auth" for use in one.uses),
    )


# -- the handshake ---------------------------------------------------------------------------------


def _details(one: Presented) -> dict[str, Any] | None:
    """The content of the certificate, or None if the certificate has neither use."""
    for use in Use:
        try:
            return _handshake(one, use, one.certificate, check_time=False)
        except ssl.SSLError:
            continue
    return None


def _error(one: Presented, use: Use, *, check_time: bool = False, host: str | None = None) -> int:
    """OpenSSL's code of the reason why a reader refuses the certificate; 0 for no reason."""
    try:
        _handshake(one, use, one.ca or one.certificate, check_time=check_time, host=host)
    except ssl.SSLCertVerificationError as error:
        return error.verify_code
    return 0


def _handshake(
    one: Presented, use: Use, trusted: Path, *, check_time: bool, host: str | None = None
) -> dict[str, Any]:
    """Present the certificate at one end to a reader at the other end that trusts ``trusted``.

    Returns the certificate as the reader decodes it. Raises SSLError.
    """
    server, client = (
        ssl.SSLContext(protocol) for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    reader = client if use is Use.SERVER else server
    for context in (server, client):
        context.load_cert_chain(one.certificate, one.key, password=lambda: "")
    reader.load_verify_locations(trusted)
    reader.verify_mode = ssl.CERT_REQUIRED
    reader.check_hostname = host is not None
    if trusted == one.certificate:
        reader.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not check_time:
        reader.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    read = _shake(server, client, host)[use is Use.CLIENT].getpeercert()
    return dict(read or {})


def _shake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str | None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake to its end; return the client's view and the server's view."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    return ends


def _names(details: dict[str, Any]) -> tuple[str, ...]:
    """The subject alternative names, or the common names of a certificate without these."""
    alternative = tuple(str(value) for _, value in details.get("subjectAltName", ()))
    subject = [pair for part in details.get("subject", ()) for pair in part]
    return alternative or tuple(value for key, value in subject if key == "commonName")


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _day(time: datetime) -> str:
    return time.date().isoformat()
