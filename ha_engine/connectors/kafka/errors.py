"""Which errors of Kafka pass, and which a person must correct."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ha_engine.connectors.kafka.options import ClusterOptions, without_values
from ha_engine.errors import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable

ADVICE = {
    "TOPIC_AUTHORIZATION_FAILED": "grant this user the right to describe and use the topic",
    "GROUP_AUTHORIZATION_FAILED": "grant this user the right to read the group that is named",
    "CLUSTER_AUTHORIZATION_FAILED": "grant this user the right to create the topic, or create it",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant this user the transactional id",
    "SASL_AUTHENTICATION_FAILED": "correct user, password and mechanism in sasl",
    "_AUTHENTICATION": "correct user, password and mechanism in sasl",
    "_SSL": "correct the files in tls, or the certificate of the broker",
    "UNSUPPORTED_SASL_MECHANISM": "choose a mechanism that the brokers offer",
    "UNKNOWN_TOPIC_OR_PART": "create the topic, or correct its name",
    "_UNKNOWN_TOPIC": "create the topic, or correct its name",
    "_UNKNOWN_PARTITION": "give rows a partition that the topic has",
    "TOPIC_EXCEPTION": "correct the name of the topic",
    "INVALID_REPLICATION_FACTOR": "lower ledger.replication, or add brokers",
    "INVALID_TRANSACTION_TIMEOUT": (
        "lower transaction_timeout, or raise transaction.max.timeout.ms of the brokers"
    ),
    "MSG_SIZE_TOO_LARGE": "raise message_max here and max.message.bytes of the topic",
    "INVALID_CONFIG": "create the topic by hand, or correct the options",
    "POLICY_VIOLATION": "create the topic by hand, as the policy of the cluster demands",
    "INVALID_RECORD": "see which records the topic accepts, such as only those with a key",
    "UNSUPPORTED_VERSION": "use brokers of Kafka 2.5 or newer",
    "_UNSUPPORTED_FEATURE": "use brokers of Kafka 2.5 or newer",
    "_INVALID_ARG": "correct the options",
}
"""What to do about each error that only a person can correct."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors of a source, or those of a sink."""

    unavailable: type[SourceUnavailable | SinkUnavailable]
    refused: type[SourceRefused | SinkRefused]

    def of(self, error: Any, doing: str) -> Exception:
        """The error for a KafkaError, or for a KafkaException that has one."""
        inner = error.args[0] if getattr(error, "args", None) else error
        name = inner.name() if hasattr(inner, "name") else ""
        text = inner.str() if hasattr(inner, "str") else str(inner)
        reason = f"{doing}: {text}{f' ({name})' if name else ''}"
        if name in ADVICE:
            return self.refused(f"{reason}; {ADVICE[name]}")
        return self.unavailable(reason)

    def of_options(self, error: Any, options: ClusterOptions) -> Exception:
        """The error for settings that librdkafka refuses."""
        text = without_values(error.args[0].str(), options)
        return self.refused(f"the options of {options.where} are wrong: {text}; correct them")


SOURCE = Failures(SourceUnavailable, SourceRefused)
SINK = Failures(SinkUnavailable, SinkRefused)


@dataclass(slots=True)
class LastError:
    """The last error of a client that concerns its connections and no single call.

    librdkafka calls ``note`` in the calls of its client. An error whose cause a person must correct
    stays until ``clear``, because errors that only follow from it come after it.
    """

    error: Any = field(default=None)

    def note(self, error: Any) -> None:
        """Keep ``error``, a KafkaError."""
        if self.error is None or self.error.name() not in ADVICE:
            self.error = error

    def clear(self) -> None:
        """Forget the error, since the brokers answer."""
        self.error = None

    @property
    def stops_all(self) -> bool:
        """Whether the client can do nothing while the error lasts."""
        return self.error is not None and (
            self.error.name() == "_ALL_BROKERS_DOWN" or self.error.name() in ADVICE
        )
