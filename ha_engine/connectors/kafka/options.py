"""The options of a connection to a Kafka cluster, and the settings of librdkafka that they make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from ha_engine.config.quantities import Duration, as_text

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CRITICAL = 2
"""librdkafka prints only what is critical. Its other problems are in the errors of this package."""
_REQUEST_SECONDS_MIN = 2.0
"""A fetch may wait for a second at the broker."""

_REFUSED_NAMES = {
    "bootstrap.servers": "brokers",
    "metadata.broker.list": "brokers",
    "security.protocol": "tls and sasl",
    "ssl.ca.location": "tls.ca_file",
    "ssl.certificate.location": "tls.certificate_file",
    "ssl.key.location": "tls.key_file",
    "ssl.key.password": "tls.key_password",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.user",
    "sasl.password": "sasl.password",
    "socket.timeout.ms": "timeout",
    "transaction.timeout.ms": "transaction_timeout",
    "message.max.bytes": "message_max",
}
"""Settings that have an option of their own."""
_REFUSED_PATTERNS = re.compile(
    r"""
    group\..* | session\.timeout\.ms | max\.poll\.interval\.ms | partition\.assignment\.strategy
    | (topic\.)?auto\.offset\.reset | (topic\.)?auto\.commit\..* | enable\.auto\..*
    | auto\.commit\.enable | offset\.store\..* | isolation\.level | enable\.partition\.eof
    | allow\.auto\.create\.topics | topic\.blacklist | consume\.callback\..*
    | transactional\.id | enable\.idempotence | enable\.gapless\.guarantee
    | acks | request\.required\.acks | request\.timeout\.ms | retries | message\.send\.max\.retries
    | max\.in\.flight(\.requests\.per\.connection)? | message\.timeout\.ms | delivery\.timeout\.ms
    | delivery\.report\..* | dr_.* | queuing\.strategy | produce\.offset\.report
    | builtin\.features | plugin\..* | interceptors | opaque | logger
    | default_topic_conf | default\.topic\.config
    | test\..* | .*_cb | on_.*
    """,
    re.VERBOSE,
)
"""Settings on which the guarantee rests, that run other code, or that are no text."""


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"{name!r} is no name of a topic; use at most 249 letters, digits, '.', '_' and '-'"
        )
    return name


def _brokers(brokers: tuple[str, ...]) -> tuple[str, ...]:
    for broker in brokers:
        host, _, port = broker.rpartition(":")
        if not host or not port.isdecimal() or "," in host or "/" in host or "@" in host:
            raise ValueError(f"{broker!r} is no broker; write host:port, such as kafka1:9092")
    return brokers


def _client(settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in settings:
        if name in _REFUSED_NAMES:
            raise ValueError(f"{name!r} is not allowed; use the option {_REFUSED_NAMES[name]}")
        if _REFUSED_PATTERNS.fullmatch(name):
            raise ValueError(f"{name!r} is not allowed, because the guarantee depends on it")
    return settings


TopicName = Annotated[str, AfterValidator(_topic)]
Setting = Annotated[SecretStr, BeforeValidator(as_text)]


class TlsOptions(BaseModel):
    """TLS. ``ca_file`` has the certificates that sign those of the brokers; without it, those of
    the system do. The client certificate in ``certificate_file`` needs the key in ``key_file``, and
    the key's ``key_password`` if it has one. All files are PEM files."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None

    @model_validator(mode="after")
    def _related(self) -> TlsOptions:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file need each other")
        if self.key_password is not None and self.key_file is None:
            raise ValueError("key_password needs key_file")
        return self


class SaslOptions(BaseModel):
    """The credentials of the client. OAUTHBEARER gets its settings ``sasl.oauthbearer.*`` from the
    option ``client``, and GSSAPI its settings ``sasl.kerberos.*``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
    user: str | None = None
    password: SecretStr | None = None

    @model_validator(mode="after")
    def _related(self) -> SaslOptions:
        needs = self.mechanism not in ("OAUTHBEARER", "GSSAPI")
        if needs != (self.user is not None) or needs != (self.password is not None):
            verb = "needs" if needs else "has no"
            raise ValueError(f"{self.mechanism} {verb} user and password")
        return self


class ClusterOptions(BaseModel):
    """The options of a connection to a cluster.

    ``brokers`` are some of the cluster's brokers, from which the client learns all of them.
    ``topic`` is the topic to read or to write. ``timeout`` limits each wait for an answer. ``tls``
    encrypts the connections, and ``sasl`` has the credentials. ``client`` has further settings of
    librdkafka, except those on which the guarantee depends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    brokers: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_brokers)]
    topic: TopicName
    timeout: Annotated[Duration, Field(ge=0.1, le=300)] = 5.0
    tls: TlsOptions | None = None
    sasl: SaslOptions | None = None
    client: Annotated[dict[str, Setting], AfterValidator(_client)] = {}

    @model_validator(mode="after")
    def _related(self) -> ClusterOptions:
        has_token = any(name.startswith("sasl.oauthbearer.") for name in self.client)
        if self.sasl is not None and self.sasl.mechanism == "OAUTHBEARER" and not has_token:
            raise ValueError(
                "OAUTHBEARER needs settings of the token in client, such as "
                "sasl.oauthbearer.method: oidc"
            )
        return self

    @property
    def where(self) -> str:
        """The topic and its cluster, for messages."""
        return f"topic {self.topic} at {self.brokers[0]}"


def request_seconds(options: ClusterOptions) -> float:
    """The time after which a request without an answer fails."""
    return max(_REQUEST_SECONDS_MIN, options.timeout)


def settings(options: ClusterOptions) -> dict[str, Any]:
    """The settings of librdkafka for a client of any kind."""
    return {
        "bootstrap.servers": ",".join(options.brokers),
        "allow.auto.create.topics": False,
        # Notices a broker that hangs with its connections open.
        "socket.timeout.ms": round(request_seconds(options) * 1000),
        "log_level": _CRITICAL,
        "reconnect.backoff.max.ms": 1_000,
        **_security(options),
        **{name: value.get_secret_value() for name, value in options.client.items()},
    }


def without_values(text: str, options: ClusterOptions) -> str:
    """``text`` of librdkafka without the values of ``options.client``, which may be secrets."""
    for value in options.client.values():
        text = text.replace(f'"{value.get_secret_value()}"', "its value")
    return text


def protocol(options: ClusterOptions) -> str:
    """Kafka's name of the protocol, for librdkafka and for clients in Java."""
    return ("SASL_" if options.sasl else "") + ("SSL" if options.tls else "PLAINTEXT")


def _security(options: ClusterOptions) -> dict[str, Any]:
    tls, sasl = options.tls, options.sasl
    found: dict[str, Any] = {"security.protocol": protocol(options)}
    if tls is not None:
        found |= {
            "ssl.ca.location": tls.ca_file and str(tls.ca_file),
            "ssl.certificate.location": tls.certificate_file and str(tls.certificate_file),
            "ssl.key.location": tls.key_file and str(tls.key_file),
            "ssl.key.password": tls.key_password and tls.key_password.get_secret_value(),
        }
    if sasl is not None:
        found |= {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.user,
            "sasl.password": sasl.password and sasl.password.get_secret_value(),
        }
    return {name: value for name, value in found.items() if value is not None}
