"""The logs of streams whose events stay in Kafka: where they are, whether they are the same, and
how long they keep what this node needs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from ha_engine.connectors.kafka.log import KafkaLogOptions, TopicIdentity
from ha_engine.connectors.kafka.retention import TopicRetention
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.query.application import StreamApplication
from ha_engine.query.plugin_sections import log_options
from ha_engine.receive.log_history import LogHistory
from ha_engine.types import LogHeadroom

log = structlog.get_logger(__name__)

RETENTION_SECONDS = 30.0
"""The pause between two questions about the retention of the topics."""


class StreamLogs:
    """The logs of an application's streams, without a connection until the first question.

    ``places`` says for people where each is, and ``refusing`` where each is whose stream takes no
    events on a node. ``headroom`` has each stream's room in its topic, when
    the brokers last answered. ``first`` is the first record that the journal keeps. The constructor
    raises ConfigError.
    """

    def __init__(
        self, application: StreamApplication, history: LogHistory, first: Callable[[], int]
    ) -> None:
        options = {
            name: log_options(name, stream.log, application.directory_of(stream))
            for name, stream in application.streams.items()
            if stream.log is not None
        }
        self.places = {name: one.where for name, one in options.items()}
        self.refusing = {name: one.where for name, one in options.items() if not one.journal}
        self.headroom: dict[str, LogHeadroom] = {}
        self._history, self._first = history, first
        self._options: dict[str, KafkaLogOptions] = options
        self._identities = {name: TopicIdentity(one) for name, one in options.items()}
        self._streams = {
            query.name: tuple(stream for stream in query.streams if stream in options)
            for query in application.queries.values()
        }

    def require_same(self, query: str) -> None:
        """Require that the topics that ``query`` reads are those of the journal's offsets.

        Raises SourceRefused, SourceUnavailable.
        """
        for stream in self._streams.get(query, ()):
            offset = self._history.at(stream, sys.maxsize)
            if offset is not None:
                self._identities[stream].require(offset)

    async def watch(self) -> None:
        """Ask the brokers for the headroom of each topic, again and again.

        Every query of this node, and every node that restores a snapshot, continues at or after the
        first record that the journal keeps.
        """
        if not self._options:
            return
        topics = {name: TopicRetention(one) for name, one in self._options.items()}
        loop = asyncio.get_running_loop()
        # A thread of its own, since the others may wait for a sink.
        thread = ThreadPoolExecutor(1, thread_name_prefix="retention")
        try:
            while True:
                for stream, topic in topics.items():
                    needed = self._history.at(stream, self._first() - 1)
                    if needed is not None:
                        found = await loop.run_in_executor(thread, _headroom, topic, needed)
                        self._note(stream, found)
                await asyncio.sleep(RETENTION_SECONDS)
        finally:
            thread.shutdown(wait=False)

    def _note(self, stream: str, found: LogHeadroom | None) -> None:
        if found is None:
            self.headroom.pop(stream, None)
        else:
            self.headroom[stream] = found


def _headroom(topic: TopicRetention, needed: str) -> LogHeadroom | None:
    try:
        return topic.headroom(needed)
    except (SourceUnavailable, SourceRefused) as error:
        # The reader of the log reports what prevents it from reading.
        log.debug("retention unknown", reason=str(error))
        return None
