"""The connection to a Redis server, which the source and the sink share.

The connection repeats no command by itself. After any failure the engine opens the source again or
repeats the batch, so that a new connection begins from a known place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from ha_engine.config.quantities import Duration
from ha_engine.connectors.library import library
from ha_engine.connectors.streams import Refused, Unavailable
from ha_engine.connectors.tls import require_readable

_PASSES = ("OOM", "MISCONF", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")
"""Words in answers about a state of the server that passes by itself, or that an operator of the
server ends."""
_CREDENTIALS = ("WRONGPASS", "NOAUTH", "invalid username-password", "AUTH")


class RedisOptions(BaseModel):
    """The options that the source and the sink share.

    - ``host``, ``port`` and ``database``: the server and the number of its database.
    - ``stream``: the key of the stream.
    - ``user`` and ``password``: the credentials. Without ``user``, the password is that of the
      default user.
    - ``tls``: encrypt the connection, and check the server's certificate.
    - ``ca_file``: the certificates that the server's certificate is checked against.
    - ``certificate_file`` and ``key_file``: the certificate of the client, and its key.
    - ``timeout``: how long a connection or an answer of the server may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 6379
    database: Annotated[int, Field(ge=0)] = 0
    stream: Annotated[str, Field(min_length=1)]
    user: str | None = None
    password: SecretStr | None = None
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 5.0

    @model_validator(mode="after")
    def _complete(self) -> RedisOptions:
        if self.user is not None and self.password is None:
            raise ValueError("user needs password")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if not self.tls and (self.ca_file or self.certificate_file):
            raise ValueError("ca_file and certificate_file need tls: true")
        return self


class Connection:
    """A connection to the server. All errors are of the classes ``refused`` and ``unavailable``."""

    def __init__(self, options: RedisOptions, refused: Refused, unavailable: Unavailable) -> None:
        self._options = options
        self.refused, self.unavailable = refused, unavailable
        self.where = f"stream {options.stream} of Redis at {options.host}:{options.port}"
        self._client: Any = None

    @property
    def is_open(self) -> bool:
        return self._client is not None

    def open(self) -> None:
        """Connect, after closing any earlier connection."""
        self.close()
        redis = library("redis", "redis", self.refused)
        options = self._options
        for file in (options.ca_file, options.certificate_file, options.key_file):
            if file is not None:
                require_readable(file, self.refused)
        secret = None if options.password is None else options.password.get_secret_value()
        no_retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        self._client = redis.Redis(
            host=options.host,
            port=options.port,
            db=options.database,
            username=options.user,
            password=secret,
            socket_timeout=options.timeout,
            socket_connect_timeout=options.timeout,
            single_connection_client=False,
            retry=no_retry,
            ssl=options.tls,
            ssl_ca_certs=None if options.ca_file is None else str(options.ca_file),
            ssl_certfile=None
            if options.certificate_file is None
            else str(options.certificate_file),
            ssl_keyfile=None if options.key_file is None else str(options.key_file),
        )
        try:
            self.call("PING")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def call(self, *command: Any) -> Any:
        """Return the server's answer to ``command``. Raises ``unavailable`` or ``refused``."""
        if self._client is None:
            raise self.unavailable(f"{self.where} is not connected")
        try:
            return self._client.execute_command(*command)
        except Exception as error:
            raise self._translated(error) from error

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a Lua script, whose only key is the stream."""
        return self.call("EVAL", script, 1, self._options.stream, *arguments)

    def _translated(self, error: Exception) -> Exception:
        """Translate an error of redis-py, whose text has no secret."""
        said, names = str(error) or type(error).__name__, [one.__name__ for one in _kinds(error)]
        if {"AuthenticationError", "AuthorizationError"} & set(names) or said.startswith(
            _CREDENTIALS
        ):
            return self.refused(f"{self.where} refuses the credentials; correct them")
        if "NoPermissionError" in names or "NOPERM" in said or "can't run this command" in said:
            return self.refused(
                f"{self.where} refuses this user: {said}; give the user this permission"
            )
        if "MovedError" in names or "AskError" in names:
            return self.refused(
                f"{self.where} is another node's in a Redis Cluster, which this kind does not "
                "follow; name the node, or use a server without cluster mode"
            )
        if "ssl" in said.lower() or "certificate" in said.lower():
            return self.refused(
                f"{self.where} cannot be reached by TLS: {said}; correct tls, ca_file, "
                "certificate_file and key_file"
            )
        if "WRONGTYPE" in said:
            return self.refused(f"{self.where} is no stream; correct the key stream")
        passes = {"ConnectionError", "TimeoutError", "ReadOnlyError", "OutOfMemoryError"}
        if passes & set(names) or any(word in said for word in _PASSES):
            return self.unavailable(f"{self.where} is not available: {said}")
        return self.refused(f"{self.where} answers: {said}")


def info_of(pairs: Sequence[Any]) -> dict[str, Any]:
    """The answer of XINFO STREAM in a Lua script, which is a flat list."""
    names = (name.decode() for name in pairs[::2])
    return dict(zip(names, pairs[1::2], strict=True))


def id_of(written: bytes | str) -> tuple[int, int]:
    """The numbers of an entry's id. Raises ValueError."""
    text = written.decode() if isinstance(written, bytes) else written
    first, _, second = text.partition("-")
    return int(first), int(second)


def _kinds(error: BaseException) -> Sequence[type]:
    return type(error).__mro__
