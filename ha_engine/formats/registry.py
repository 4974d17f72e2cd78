"""Find the schema of a message in a schema registry.

A message begins with a zero byte and four bytes with the id of its schema, as Confluent's clients
write it (docs.confluent.io, "Wire format"). Compatible registries serve the same route: Karapace,
Apicurio, Redpanda.
"""

from __future__ import annotations

import struct
from http import HTTPStatus

import httpx
from pydantic import BaseModel, ConfigDict, SecretStr

from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.formats.json_rows import BadRow

MAGIC = 0
_HEAD = struct.Struct(">bI")
CALL_SECONDS = 5.0


class Registry(BaseModel):
    """Where a schema registry is. ``ca_file`` has the certificates to trust, by default those of
    the host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    user: str | None = None
    password: SecretStr | None = None
    ca_file: str | None = None


def framed(message: bytes) -> tuple[int, bytes]:
    """Return the id of the message's schema, and the rest of the message. Raises BadRow."""
    if len(message) < _HEAD.size or message[0] != MAGIC:
        raise BadRow("the message does not begin with the id of a registered schema")
    return _HEAD.unpack_from(message)[1], message[_HEAD.size :]


class RegistryClient:
    """Reads schemas. A schema never changes, so each is read once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._schemas: dict[int, str] = {}
        self._client: httpx.Client | None = None

    def schema(self, number: int) -> str:
        """The text of schema ``number``.

        Raises BadRow if the registry has no such schema, SourceUnavailable while the registry does
        not answer, and SourceRefused if the registry refuses the credentials.
        """
        if number not in self._schemas:
            self._schemas[number] = self._read(number)
        return self._schemas[number]

    def _read(self, number: int) -> str:
        where = f"the schema registry {self._registry.url}"
        try:
            answer = self._opened().get(f"/schemas/ids/{number}")
        except (httpx.HTTPError, OSError) as error:
            raise SourceUnavailable(f"{where} does not answer: {error}") from error
        match answer.status_code:
            case HTTPStatus.OK:
                text = answer.json().get("schema")
                if isinstance(text, str):
                    return text
                raise SourceRefused(f"{where} answers without a schema; check its url")
            case HTTPStatus.NOT_FOUND:
                raise BadRow(f"schema {number} is not in {where}")
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                raise SourceRefused(f"{where} refuses the user; check user and password")
            case status:
                raise SourceUnavailable(f"{where} answers {status}: {answer.text[:200]}")

    def _opened(self) -> httpx.Client:
        if self._client is None:
            registry, auth = self._registry, None
            if registry.user is not None:
                password = registry.password.get_secret_value() if registry.password else ""
                auth = httpx.BasicAuth(registry.user, password)
            verify = registry.ca_file if registry.ca_file is not None else True
            self._client = httpx.Client(
                base_url=registry.url, auth=auth, verify=verify, timeout=CALL_SECONDS
            )
        return self._client
