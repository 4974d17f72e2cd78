"""The connection to RabbitMQ, which the source and the sink share.

The connection never reconnects by itself. After any failure the engine opens the source again or
repeats the batch, and a new connection begins from a known place.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.connectors.loop_thread import LoopThread
from ha_engine.connectors.rabbitmq.fields import accept_all_fields
from ha_engine.connectors.streams import Refused, Unavailable
from ha_engine.connectors.tls import tls_context

T = TypeVar("T")

CLOSE_SECONDS = 0.1
"""The time that ``close`` waits for the broker. Then the connection ends with its event loop."""
_ALARM = "; it has an alarm of memory or disk space, and takes no messages until that ends"
_REPLY = re.compile(r"\b[A-Z]+(?:_[A-Z]+)* - (.+?)\W*$")
"""The broker's reason in the text of an error of the library."""


class RabbitOptions(BaseModel):
    """The options that the source and the sink share.

    - ``host`` and ``port``: the broker. The port is 5672, or 5671 with ``tls``.
    - ``virtual_host``: the virtual host.
    - ``user`` and ``password``: the login.
    - ``tls``: encrypt the connection, and check the broker's certificate.
    - ``ca_file``: the certificates that the broker's certificate is checked against.
    - ``certificate_file`` and ``key_file``: the certificate of the client, and its key.
    - ``timeout``: how long a connection or an answer of the broker may take.
    - ``heartbeat``: the broker ends a connection after two intervals without a sign of life.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    virtual_host: Annotated[str, Field(min_length=1)] = "/"
    user: str = "guest"
    password: SecretStr = SecretStr("guest")
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 10.0
    heartbeat: Annotated[Duration, Field(ge=1, le=3_600)] = 10.0

    @model_validator(mode="after")
    def _complete(self) -> RabbitOptions:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise ValueError("ca_file and certificate_file need tls: true")
        # The library would open another virtual host, since it writes the name into a URL.
        if self.virtual_host in (".", "..") or "%2F" in self.virtual_host:
            raise ValueError(
                f"the virtual host {self.virtual_host} cannot be used; a name must not be . or .., "
                "and must not contain %2F"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return self.host, self.port or (5671 if self.tls else 5672)


class Connection:
    """A connection with one channel. It opens once and ends once.

    Only the coroutines of ``call`` may use ``channel``, which is aio-pika's. All errors are of the
    classes ``refused`` and ``unavailable``. The loop calls ``on_lost`` when the connection ends.
    """

    channel: Any

    def __init__(
        self,
        options: RabbitOptions,
        name: str,
        refused: Refused,
        unavailable: Unavailable,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._name, self._on_lost = options, name, on_lost
        self.refused, self.unavailable = refused, unavailable
        host, port = options.address
        self.where = f"RabbitMQ at {host}:{port}"
        if options.virtual_host != "/":
            self.where += f", virtual host {options.virtual_host},"
        self._pika = library("aio_pika", "rabbitmq", refused)
        self.errors = library("aiormq.exceptions", "rabbitmq", refused)
        self._loop: LoopThread | None = None
        self._connection: Any = None
        self._lost: Exception | None = None

    def open(self, seconds: float | None = None) -> None:
        """Return once the channel is open. Its publisher confirms are on."""
        options, tls = self._options, None
        if options.tls:
            files = options.ca_file, options.certificate_file, options.key_file
            tls = tls_context(*files, self.refused)
        accept_all_fields(self.refused)
        self._loop = LoopThread(f"rabbitmq {self._name}")
        try:
            self.call(self._open(tls), "accept the connection", seconds)
        except BaseException:
            self.close()
            raise

    def call(self, work: Coroutine[Any, Any, T], what: str, seconds: float | None = None) -> T:
        """Return the result of ``work``, which runs in the connection's loop. ``what`` completes
        "does not" in an error.

        Raises ``refused`` or ``unavailable``.
        """
        if self._loop is None:
            work.close()
            raise self.unavailable(f"{self.where} is not connected")
        limit = self._options.timeout if seconds is None else seconds
        try:
            return self._loop.call(work, limit)
        except (TimeoutError, asyncio.CancelledError) as error:
            if self._lost is not None:
                raise self.translated(self._lost) from error
            alarm = _ALARM if self.is_blocked else ""
            raise self.unavailable(f"{self.where} does not {what} within {limit:g} s{alarm}") from (
                error
            )
        except Exception as error:
            raise self.translated(error) from error

    @property
    def is_lost(self) -> bool:
        """Whether the connection or its channel has ended."""
        return self._lost is not None

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages from this connection, because it has an alarm."""
        transport = getattr(self._connection, "transport", None)
        unblocked = getattr(
            getattr(transport, "connection", None), "_Connection__connection_unblocked", None
        )
        return self._lost is None and unblocked is not None and not unblocked.is_set()

    def await_unblocked(self, seconds: float) -> None:
        """Return once the broker takes messages. Raises ``unavailable`` after ``seconds``."""
        self.call(self._unblocked(), "take messages", seconds)

    def require_alive(self) -> None:
        """Raise the error with which the connection ended, if it has ended."""
        if self._lost is not None:
            raise self.translated(self._lost)

    def close(self) -> None:
        """End the connection, and wait a moment for the broker's answer. A second call does
        nothing."""
        loop, connection = self._loop, self._connection
        self._loop, self._connection = None, None
        self._lost = self._lost or ConnectionError("the connection is closed")
        if loop is None:
            return
        try:
            if connection is not None:
                loop.call(connection.close(), CLOSE_SECONDS)
        except (Exception, asyncio.CancelledError):  # noqa: S110  # the loop ends the socket below
            pass
        finally:
            loop.stop()

    def abandon(self) -> None:
        """Begin to end the connection. Only the loop may call this."""
        if self._connection is not None:
            self._ending = asyncio.ensure_future(self._connection.close())

    # -- connecting --------------------------------------------------------------------------------

    async def _open(self, tls: ssl.SSLContext | None) -> None:
        options = self._options
        host, port = options.address
        connection = self._pika.Connection(
            self._pika.connection.make_url(
                host=host,
                port=port,
                login=options.user,
                password=options.password.get_secret_value(),
                virtualhost=options.virtual_host,
                ssl=options.tls,
                heartbeat=int(options.heartbeat),
                name=self._name,
            ),
            ssl_context=tls,
        )
        self._connection = connection
        await connection.connect(timeout=options.timeout)
        connection.close_callbacks.add(self._end)
        self.channel = connection.channel(publisher_confirms=True, on_return_raises=True)
        await self.channel.initialize(timeout=options.timeout)
        self.channel.close_callbacks.add(self._end)

    async def _unblocked(self) -> None:
        transport = self._connection.transport
        if transport is not None:
            await transport.ready()

    def _end(self, _: Any, error: BaseException | None) -> None:
        if not isinstance(error, Exception):  # None, or the cancellation of a task of the library
            error = ConnectionError("the connection is closed")
        self._lost = self._lost or error
        self._on_lost()

    # -- errors ------------------------------------------------------------------------------------

    def translated(self, error: Exception) -> Exception:
        """Translate an error of aio-pika. The result shows no secret, since it quotes only what the
        broker said."""
        if isinstance(error, (self.refused, self.unavailable)):
            return error
        errors, said = self.errors, _said(error)
        certificate = next(
            (one for one in _chain(error) if isinstance(one, ssl.SSLCertVerificationError)), None
        )
        if certificate is not None:
            return self.refused(
                f"{self.where} has a certificate that is not accepted: "
                f"{certificate.verify_message}; correct ca_file or host"
            )
        match error:
            case errors.ProbableAuthenticationError() | errors.AuthenticationError():
                return self.refused(
                    f"{self.where} refuses the login of user {self._options.user}; correct user "
                    "and password"
                )
            case errors.InvalidFrameError() if "Connection.OpenOk" in str(error):
                # The library keeps the broker's reason to itself.
                return self.refused(
                    f"{self.where} does not open virtual host {self._options.virtual_host} for "
                    f"user {self._options.user}; create it, or correct virtual_host, or give the "
                    "user permissions in it, or raise a limit of connections"
                )
            case errors.ConnectionNotAllowed():
                return self.refused(f"{self.where} ended the connection: {said}")
            case errors.ChannelNotFoundEntity() if said.startswith("no "):
                return self.refused(f"{self.where} has {said}; create it, or correct the options")
            case errors.ChannelLockedResource():
                return self.refused(
                    f"{self.where} refuses: {said}; declare the queue without the flag exclusive"
                )
            case errors.ChannelAccessRefused() if "exclusive use" in said:
                return self.unavailable(
                    f"{self.where} refuses: {said}: another consumer, such as the former active, "
                    "still has the queue, or the queue has x-single-active-consumer, which needs "
                    "single_active_consumer: true"
                )
            case errors.ChannelAccessRefused():
                return self.refused(f"{self.where} refuses: {said}; give the user this permission")
            case errors.ChannelPreconditionFailed() if "timed out" not in said:
                return self.refused(f"{self.where} refuses: {said}")
        passes = (errors.AMQPError, OSError, EOFError, RuntimeError, CancelledError)
        # aiormq cancels calls that wait while it closes, or ends them with a bare Exception.
        is_closing = type(error) is Exception
        kind = self.unavailable if is_closing or isinstance(error, passes) else self.refused
        return kind(f"{self.where} is not available: {said}")


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    found = _REPLY.search(text)
    return found[1] if found else text


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:  # the library makes cycles
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
