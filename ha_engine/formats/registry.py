"""Find the schema of a message in a schema registry.

A message begins with a zero byte and four bytes with the id of its schema, as Confluent's clients
write it (docs.confluent.io, "Wire format"). Compatible registries serve the same route: Karapace,
Apicurio, Redpanda. A registry does not change the schema of an id.
"""

from __future__ import annotations

import ssl
import struct
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

from ha_engine.errors import (
    ConfigError,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
)
from ha_engine.formats.json_rows import BadRow

MAGIC = 0
CALL_SECONDS = 5.0
MISSING_SECONDS, MISSING_MAX = 10.0, 1_000
"""The time for which the client remembers that a schema is missing, and the most such schemas."""
_HEAD = struct.Struct(">bI")
_NO_SUCH = (40401, 40402, 40403)
"""Only with these codes does the registry itself say that a subject, version or schema does not
exist. Any other answer 404 may come from a proxy, or from a wrong path in the URL."""


def _url(written: str) -> str:
    """Check a URL. An error does not quote the URL, which may contain a password."""
    try:
        parsed = httpx.URL(written)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError):
        raise ValueError("is not a URL") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("is not a URL of http or https")
    if parsed.query or parsed.fragment:
        raise ValueError("has a query or a fragment; write only its address")
    if parsed.userinfo:
        raise ValueError("has a user or password; write them in the keys user and password")
    return written


class Registry(BaseModel):
    """The address of a schema registry. ``ca_file`` has the certificates to trust, by default those
    of the host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(_url)]
    user: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None


def framed(message: bytes) -> tuple[int, bytes]:
    """Return the id of the message's schema, and the rest of the message. Raises BadRow."""
    if len(message) < _HEAD.size or message[0] != MAGIC:
        raise BadRow("the message does not begin with the id of a registered schema")
    return _HEAD.unpack_from(message)[1], message[_HEAD.size :]


def head_of(number: int) -> bytes:
    """The bytes before a message with schema ``number``."""
    return _HEAD.pack(MAGIC, number)


class RegistryClient:
    """Reads schemas. A relative ``ca_file`` begins at the directory ``base``. The constructor
    raises ConfigError if ``ca_file`` cannot be loaded."""

    def __init__(self, registry: Registry, base: Path) -> None:
        self._where = f"the schema registry {registry.url}"
        password = registry.password.get_secret_value() if registry.password else ""
        auth = None if registry.user is None else httpx.BasicAuth(registry.user, password)
        self._url, self._missing = registry.url, dict[int, tuple[float, str]]()
        self._client = httpx.Client(auth=auth, verify=_trust(registry, base), timeout=CALL_SECONDS)

    def schema(self, number: int) -> str:
        """The text of schema ``number``.

        Raises BadRow if the registry has no such schema or the engine cannot use it,
        SourceUnavailable while the registry does not answer, and SourceRefused if a person must
        correct the address or the credentials.
        """
        missing_until, reason = self._missing.get(number, (0.0, ""))
        if time.monotonic() < missing_until:
            raise BadRow(reason)
        try:
            found = self._read(f"schemas/ids/{number}")
            return _text(found, f"schema {number}")
        except _Missing as missing:
            if len(self._missing) >= MISSING_MAX:
                self._missing.clear()
            self._missing[number] = time.monotonic() + MISSING_SECONDS, str(missing)
            raise BadRow(str(missing)) from None
        except _Down as down:
            raise SourceUnavailable(str(down)) from down
        except _Wrong as wrong:
            raise SourceRefused(str(wrong)) from wrong

    def schema_to_write(self, number: int) -> str:
        """The text of schema ``number``, for a sink.

        Raises SinkRefused if the registry has no such schema or the engine cannot use it, and
        SinkUnavailable for any other failure. The check of a query's schema asks too, and only
        SinkRefused stops the query. A registry whose address or credentials are wrong says nothing
        about the query.
        """
        try:
            return _text(self._read(f"schemas/ids/{number}"), f"schema {number}")
        except _Missing as missing:
            raise SinkRefused(str(missing)) from None
        except (_Down, _Wrong) as failed:
            raise SinkUnavailable(str(failed)) from failed

    def _read(self, path: str) -> dict[str, Any]:
        """Raises _Missing, _Down, _Wrong."""
        try:
            answer = self._client.get(f"{self._url.rstrip('/')}/{path}")
            found = _json(answer)
        except Exception as error:  # a message may be good, whatever the registry does
            reason = str(error) or type(error).__name__
            raise _Down(f"{self._where} does not answer: {reason}") from error
        match answer.status_code:
            case HTTPStatus.OK:
                return found
            case HTTPStatus.NOT_FOUND if found.get("error_code") in _NO_SUCH:
                raise _Missing(f"{self._where} has no {path}")
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                raise _Wrong(f"{self._where} refuses the user; check user and password")
            case HTTPStatus.NOT_FOUND:
                raise _Wrong(f"{self._where} has no schemas at this URL; check it")
            case status:
                raise _Down(f"{self._where} answers {status}: {_shown(answer)}")


class _Missing(Exception):
    """The registry says that it has no such schema, or has one that the engine cannot use."""


class _Down(Exception):
    """The registry does not answer, or answers with a failure of its own."""


class _Wrong(Exception):
    """A person must correct the registry's address or credentials."""


def _text(found: dict[str, Any], what: str) -> str:
    """Raises _Missing, _Wrong."""
    text = found.get("schema")
    if not isinstance(text, str):
        raise _Wrong(f"the schema registry answers without {what}; check its URL")
    kind = found.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise _Missing(f"{what} is of the type {kind}, not AVRO")
    if found.get("references"):
        raise _Missing(
            f"{what} refers to other schemas, which the engine does not read; register it with its "
            "types inside"
        )
    return text


def _shown(answer: httpx.Response) -> str:
    return answer.content[:200].decode(errors="replace")


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _trust(registry: Registry, base: Path) -> ssl.SSLContext | bool:
    if registry.ca_file is None:
        return True
    path = base / registry.ca_file
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # an SSLError is one too
        raise ConfigError(f"registry.ca_file: {path} cannot be loaded: {error}") from error
