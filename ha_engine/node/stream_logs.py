"""The logs of streams whose events stay in Kafka: where they are, and whether they are the same."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ha_engine.connectors.kafka.log import TopicIdentity
from ha_engine.query.application import StreamApplication
from ha_engine.query.plugin_sections import log_options
from ha_engine.receive.log_history import LogHistory


@dataclass(frozen=True, slots=True)
class StreamLogs:
    """The logs of an application's streams. ``places`` says for people where each is."""

    places: Mapping[str, str]
    _identities: Mapping[str, TopicIdentity]
    _streams: Mapping[str, tuple[str, ...]]
    _history: LogHistory

    @classmethod
    def of(cls, application: StreamApplication, history: LogHistory) -> StreamLogs:
        """Make the logs, without a connection. Raises ConfigError."""
        options = {
            name: log_options(name, stream.log, application.directory)
            for name, stream in application.streams.items()
            if stream.log is not None
        }
        logged = {
            query.name: tuple(stream for stream in query.streams if stream in options)
            for query in application.queries.values()
        }
        places = {name: one.where for name, one in options.items()}
        identities = {name: TopicIdentity(one) for name, one in options.items()}
        return cls(places, identities, logged, history)

    def require_same(self, query: str) -> None:
        """Require that the topics that ``query`` reads are those of the journal's offsets.

        Raises SourceRefused, SourceUnavailable.
        """
        for stream in self._streams.get(query, ()):
            offset = self._history.at(stream, sys.maxsize)
            if offset is not None:
                self._identities[stream].require(offset)
