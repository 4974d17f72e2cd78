"""One connection to RabbitMQ and its channel, in an event loop of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.connectors.loop_thread import LoopThread
from ha_engine.errors import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable

T = TypeVar("T")

CLOSE_SECONDS = 0.1
"""How long ``close`` waits for the broker. Afterwards the connection ends with its event loop."""


class BrokerOptions(BaseModel):
    """The options of a connection to a broker.

    ``tls`` encrypts the connection; the port is then 5671 instead of 5672. ``ca_file`` has the
    certificates that sign the broker's one; without it, those of the system do. The client
    certificate in ``certificate_file`` needs the key in ``key_file``. ``timeout`` bounds each wait
    for an answer of the broker. The broker regards a connection as lost after two intervals of
    ``heartbeat`` without a sign of life.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(min_length=1)
    port: int | None = Field(None, ge=1, le=65535)
    virtual_host: str = Field("/", min_length=1)
    user: str = "guest"
    password: SecretStr = SecretStr("guest")
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout: Duration = Field(10.0, gt=0)
    heartbeat: Duration = Field(10.0, ge=1, le=3_600)

    @model_validator(mode="after")
    def _related(self) -> BrokerOptions:
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file need tls: true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file need each other")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return self.host, self.port or (5671 if self.tls else 5672)


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors of a source, or those of a sink."""

    unavailable: type[SourceUnavailable | SinkUnavailable]
    refused: type[SourceRefused | SinkRefused]


SOURCE = Failures(SourceUnavailable, SourceRefused)
SINK = Failures(SinkUnavailable, SinkRefused)


class Connection:
    """A connection and one channel, which ``connect`` opens and which end once.

    Every method but ``connect`` and ``close`` of the underlying library runs in the loop: pass it
    to ``call``.
    """

    channel: Any

    def __init__(self, options: BrokerOptions, name: str, failures: Failures) -> None:
        self._options, self._name, self._failures = options, name, failures
        self.where = "RabbitMQ {}:{}{}".format(
            *options.address,
            "" if options.virtual_host == "/" else f" (virtual host {options.virtual_host})",
        )
        self._pika = library("aio_pika", "rabbitmq", failures.refused)
        self._errors = library("aiormq.exceptions", "rabbitmq", failures.refused)
        self._loop = LoopThread(f"rabbitmq-{name}")
        self._connection: Any = None
        self._lost: Exception | None = None

    def connect(self) -> None:
        """Return once the channel is open. Its publisher confirms are on."""
        try:
            self.call(self._connect(), "accept the connection")
        except BaseException:
            self.close()
            raise

    def call(self, work: Coroutine[Any, Any, T], what: str, seconds: float | None = None) -> T:
        """Run ``work`` in the loop. Translates every error; ``what`` completes "does not"."""
        limit = self._options.timeout if seconds is None else seconds
        try:
            return self._loop.call(work, limit)
        except (SourceUnavailable, SourceRefused, SinkUnavailable, SinkRefused):
            raise
        except (TimeoutError, asyncio.CancelledError) as error:
            raise self._failures.unavailable(
                f"{self.where} does not {what} within {limit:g} s"
            ) from error
        except Exception as error:
            raise self.translated(error) from error

    @property
    def is_lost(self) -> bool:
        """Whether the connection or its channel has ended."""
        return self._lost is not None

    def require_alive(self) -> None:
        """Raise the error with which the connection ended, if it has ended."""
        if self._lost is not None:
            raise self.translated(self._lost)

    def close(self) -> None:
        """End the connection, and wait a moment for the broker's answer."""
        self._lost = self._lost or ConnectionError("the connection is closed")
        if self._connection is not None:
            try:
                self._loop.call(self._connection.close(), CLOSE_SECONDS)
            except Exception:  # noqa: S110 - the broker finds out by the end of the socket
                pass
        self._connection = None
        self._loop.stop()

    def translated(self, error: Exception) -> Exception:
        """The error of the plug-in interface for an error of the library."""
        errors, words = self._errors, _words(error)
        passes = (errors.AMQPError, OSError, EOFError, RuntimeError)
        kind = self._failures.unavailable if isinstance(error, passes) else self._failures.refused
        match error:
            case ssl.SSLCertVerificationError():
                kind = self._failures.refused
                words = f"the certificate of the broker is not accepted: {error.verify_message}"
                words += "; correct ca_file or host"
            case errors.ProbableAuthenticationError() | errors.AuthenticationError():
                kind = self._failures.refused
                words = "the broker refuses the login; correct user and password"
            case errors.ChannelNotFoundEntity():
                kind = self._failures.refused
                words += "; create it, or correct the options"
            case errors.ChannelAccessRefused() if "exclusive" in words:
                words += (
                    "; another consumer, such as the former active, still has the queue, or the "
                    "queue has x-single-active-consumer, which needs single_active_consumer"
                )
            case errors.ChannelAccessRefused() | errors.ConnectionNotAllowed():
                kind = self._failures.refused
                words += "; correct the permissions of the user, or virtual_host"
            case errors.ChannelPreconditionFailed() if "timed out" not in words:
                kind = self._failures.refused
        return kind(f"{self.where}: {words}")

    # -- in the loop -------------------------------------------------------------------------------

    async def _connect(self) -> None:
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
            ssl_context=self._tls_context() if options.tls else None,
        )
        await connection.connect(timeout=options.timeout)
        self._connection = connection
        connection.close_callbacks.add(self._ended)
        self.channel = connection.channel(publisher_confirms=True, on_return_raises=True)
        await self.channel.initialize(timeout=options.timeout)
        self.channel.close_callbacks.add(self._ended)

    def _ended(self, _: Any, error: BaseException | None) -> None:
        if not isinstance(error, Exception):  # None, or the cancellation of a task of the library
            error = ConnectionError("the connection is closed")
        self._lost = self._lost or error
        self.on_lost()

    def on_lost(self) -> None:
        """Called in the loop when the connection ends; a reader replaces it."""

    def _tls_context(self) -> ssl.SSLContext:
        options = self._options
        try:
            context = ssl.create_default_context(cafile=options.ca_file)
            if options.certificate_file is not None:
                context.load_cert_chain(options.certificate_file, options.key_file)
        except (OSError, ValueError) as error:
            raise self._failures.refused(
                f"ca_file, certificate_file or key_file cannot be used: {error}"
            ) from error
        return context


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
