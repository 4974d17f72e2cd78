"""Tell errors of Kafka that pass from those that a person must correct."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ha_engine.connectors.kafka.options import ClusterOptions, without_values
from ha_engine.connectors.streams import Refused, Unavailable
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
    "MSG_SIZE_TOO_LARGE": (
        "raise message_max and max.message.bytes of the topic for a larger message; for many small "
        "ones, lower message_max to max.message.bytes"
    ),
    "INVALID_CONFIG": "create the topic by hand, or correct the options",
    "POLICY_VIOLATION": "create the topic by hand, as the policy of the cluster demands",
    "INVALID_TIMESTAMP": (
        "correct the column of timestamp, or raise message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms of the topic"
    ),
    "INVALID_RECORD": "see which records the topic accepts, such as only those with a key",
    "UNSUPPORTED_VERSION": "use brokers of Kafka 2.5 or newer",
    "_UNSUPPORTED_FEATURE": "use brokers of Kafka 2.5 or newer",
    "_INVALID_ARG": "correct the options",
}
"""The advice for each error that only a person can correct."""

_TLS_REFUSAL = re.compile(r"alert .*(certificate|unknown ca)")
"""The end of a connection whose broker does not accept the certificate of the client. With TLS 1.3
it comes after the handshake, so librdkafka does not call it an error of TLS."""


def advice_for(error: Any) -> str | None:
    """Return what a person must do about a KafkaError, or None if the error passes."""
    name = "_SSL" if _TLS_REFUSAL.search(error.str()) else error.name()
    return ADVICE.get(name)


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors of a source, or those of a sink."""

    unavailable: Unavailable
    refused: Refused

    def of(self, error: Any, doing: str) -> Exception:
        """The error for a KafkaError, or for a KafkaException that has one."""
        inner = error.args[0] if getattr(error, "args", None) else error
        if not hasattr(inner, "name"):
            return self.unavailable(f"{doing}: {inner}")
        reason, advice = f"{doing}: {inner.str()} ({inner.name()})", advice_for(inner)
        return self.refused(f"{reason}; {advice}") if advice else self.unavailable(reason)

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
    _are_all_down: bool = False

    def note(self, error: Any) -> None:
        """Keep ``error``, a KafkaError."""
        if error.name() == "_ALL_BROKERS_DOWN":
            self._are_all_down = True
            self.error = self.error or error  # an earlier one says why
        elif self.error is None or advice_for(self.error) is None:
            self.error = error

    def clear(self) -> None:
        """Forget the error, since the brokers answer."""
        self.error, self._are_all_down = None, False

    @property
    def stops_all(self) -> bool:
        """Whether the client can do nothing while the error lasts."""
        error = self.error  # which another thread may clear
        return self._are_all_down or (error is not None and advice_for(error) is not None)
