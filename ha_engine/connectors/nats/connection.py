"""The connection to NATS, which the source and the sink share.

The connection never reconnects by itself. A client that reconnects may drop messages, or send
messages that it kept from before, at a time that nobody chose. After any failure the engine opens
the source again or repeats the batch, and a new connection begins from a known place.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.connectors.loop_thread import LoopThread
from ha_engine.connectors.streams import Refused, Unavailable
from ha_engine.connectors.tls import require_readable, tls_context

T = TypeVar("T")

CLOSE_SECONDS = 1.0
STREAM_NOT_FOUND = 10059
_CREDENTIALS = ("authorization violation", "authentication", "nkeys", "jwt")
_TLS = ("secure connection", "tls")


def _server(url: str) -> str:
    """Check the URL of a server. An error does not quote it, since it may contain a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("nats", "tls") or not rest.strip("/"):
        raise ValueError("is not a URL of NATS; write nats://host:4222, or tls://host:4222")
    if "@" in rest:
        raise ValueError("contains credentials; write them in the keys user and password, or token")
    return url


class NatsOptions(BaseModel):
    """The options that the source and the sink share.

    - ``servers``: the URLs of the servers of one NATS cluster, ``nats://host:port`` or
      ``tls://host:port``. One that answers is enough.
    - ``stream``: the name of the JetStream stream.
    - ``domain``: the JetStream domain of the stream, if the servers have several.
    - ``user`` and ``password``, ``token``, or ``credentials_file``: the credentials.
    - ``ca_file``: the certificates that the servers' certificates are checked against. With
      ``ca_file`` or a URL of ``tls`` the connection is encrypted.
    - ``certificate_file`` and ``key_file``: the certificate of the client, and its key.
    - ``timeout``: how long a connection or an answer of a server may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    servers: Annotated[tuple[Annotated[str, AfterValidator(_server)], ...], Field(min_length=1)]
    stream: Annotated[str, Field(pattern=r"^[^\s.*>/\\]+$")]
    domain: Annotated[str, Field(pattern=r"^[^\s.*>]+$")] | None = None
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    credentials_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 5.0

    @model_validator(mode="after")
    def _complete(self) -> NatsOptions:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together; write both or neither")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        kinds = [self.user, self.token, self.credentials_file]
        if sum(kind is not None for kind in kinds) > 1:
            raise ValueError("write only one of user, token and credentials_file")
        return self

    @property
    def is_encrypted(self) -> bool:
        keys = self.ca_file is not None or self.certificate_file is not None
        return keys or any(url.startswith("tls:") for url in self.servers)


class ApiError(Exception):
    """JetStream answers a request with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.code = int(error.get("code", 500))
        self.err_code = int(error.get("err_code", 0))
        super().__init__(f"{error.get('description', 'no description')} ({self.code})")


class Connection:
    """A connection to one of the servers.

    ``whose`` names the stream in errors. All errors are of the classes ``refused`` and
    ``unavailable``.
    """

    def __init__(
        self, options: NatsOptions, name: str, refused: Refused, unavailable: Unavailable
    ) -> None:
        self._options, self._name = options, name
        self.refused, self.unavailable = refused, unavailable
        self.where = f"stream {options.stream} of NATS at {', '.join(options.servers)}"
        self._prefix = f"$JS.{options.domain}.API" if options.domain else "$JS.API"
        self._loop: LoopThread | None = None
        self._client: Any = None
        self._closed: asyncio.Event | None = None
        self._heard: BaseException | None = None

    @property
    def is_open(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    @property
    def client(self) -> Any:
        """The client of nats-py, which only the coroutines of ``call`` may use."""
        return self._client

    def open(self, seconds: float | None = None) -> None:
        """Connect, after closing any earlier connection."""
        self.close()
        nats = library("nats", "nats", self.refused)
        if self._options.credentials_file is not None:
            library("nkeys", "nats", self.refused)
        arguments = self._arguments()
        self._loop = LoopThread(f"nats {self._name}")
        limit = self._options.timeout * len(self._options.servers) + 1
        try:
            self.call(self._connect(nats, arguments), limit if seconds is None else seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        loop, client = self._loop, self._client
        self._loop, self._client = None, None
        if loop is None:
            return
        try:
            if client is not None:
                loop.call(client.close(), CLOSE_SECONDS)
        except Exception:  # noqa: S110  # the thread ends below, and the connection with it
            pass
        finally:
            loop.stop()

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return the result of ``work``, which runs in the connection's loop.

        Raises ``unavailable`` or ``refused``. If the connection ends, the call ends too.
        """
        if self._loop is None:
            work.close()
            raise self.unavailable(f"{self.where} is not connected")
        try:
            return self._loop.call(self._until_closed(work), max(seconds, 0.01))
        except Exception as error:
            raise self._translated(error) from error

    async def request(self, subject: str, request: object = None) -> dict[str, Any]:
        """Return the answer of JetStream's API to ``request``, which becomes JSON.

        Raises ApiError.
        """
        body = b"" if request is None else json.dumps(request).encode()
        message = await self._client.request(
            f"{self._prefix}.{subject}", body, timeout=self._options.timeout
        )
        answer: dict[str, Any] = json.loads(message.data or b"{}")
        if "error" in answer:
            raise ApiError(answer["error"])
        return answer

    async def stream(self) -> dict[str, Any]:
        """Return the configuration and the state of the stream."""
        try:
            return await self.request(f"STREAM.INFO.{self._options.stream}")
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                raise self.refused(
                    f"{self.where} does not exist; create it, or correct the key stream"
                ) from error
            raise

    async def message(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return a stored message of the stream, or None if no message fits ``request``."""
        try:
            found = await self.request(f"STREAM.MSG.GET.{self._options.stream}", request)
        except ApiError as error:
            if error.code == 404 and error.err_code != STREAM_NOT_FOUND:
                return None
            raise
        message: dict[str, Any] = found["message"]
        return message

    def subject_of(self, request: str) -> str:
        """The subject of a request to JetStream's API."""
        return f"{self._prefix}.{request}"

    # -- connecting --------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        options = self._options
        found: dict[str, Any] = {"name": self._name}
        if options.user is not None and options.password is not None:
            found |= {"user": options.user, "password": options.password.get_secret_value()}
        if options.token is not None:
            found["token"] = options.token.get_secret_value()
        if options.credentials_file is not None:
            require_readable(options.credentials_file, self.refused)
            found["user_credentials"] = str(options.credentials_file)
        if options.is_encrypted:
            found["tls"] = tls_context(
                options.ca_file, options.certificate_file, options.key_file, self.refused
            )
        return found

    async def _connect(self, nats: Any, arguments: dict[str, Any]) -> None:
        self._closed, self._heard = asyncio.Event(), None
        servers = random.sample(self._options.servers, len(self._options.servers))
        for number, server in enumerate(servers, 1):
            try:
                self._client = await asyncio.wait_for(
                    nats.connect(
                        [server],
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        reconnect_time_wait=0,
                        connect_timeout=self._options.timeout,
                        error_cb=self._hear,
                        closed_cb=self._end,
                        **arguments,
                    ),
                    self._options.timeout,
                )
                return
            except Exception:
                if number == len(servers):
                    raise

    async def _hear(self, error: Exception) -> None:
        self._heard = error

    async def _end(self) -> None:
        assert self._closed is not None
        self._closed.set()

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        if self._client is None:
            return await task
        assert self._closed is not None
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionResetError("the server closed the connection")
            return task.result()
        finally:
            task.cancel()
            closing.cancel()

    # -- errors ------------------------------------------------------------------------------------

    def _translated(self, error: Exception) -> Exception:
        """Translate an error of nats-py or of JetStream. The result shows no secret, since neither
        quotes one."""
        if isinstance(error, (self.refused, self.unavailable)):
            return error
        heard = self._heard
        if heard is not None and "permissions violation" in str(heard).lower():
            return self.refused(
                f"{self.where} refuses this user: {heard}; give the user this permission"
            )
        if isinstance(error, ApiError):
            # 500 and 503 are those of a cluster without a leader or a full disk, 409 that of a
            # message whose id is still on its way.
            kind = self.unavailable if error.code >= 500 or error.code == 409 else self.refused
            return kind(f"{self.where} answers: {error}")
        cause = heard if type(error).__name__ == "NoServersError" and heard else error
        said = str(cause) or type(cause).__name__
        lower = said.lower()
        if isinstance(cause, ssl.SSLError) or any(word in lower for word in _TLS):
            return self.refused(
                f"{self.where} cannot be reached by TLS: {said}; correct ca_file, certificate_file "
                "and key_file, or the URLs of servers"
            )
        if any(word in lower for word in _CREDENTIALS):
            return self.refused(f"{self.where} refuses the credentials; correct them")
        if type(cause).__name__ == "NoRespondersError":
            said = "JetStream does not answer; it is not enabled, or it is starting"
        return self.unavailable(f"{self.where} is not available: {said}")
