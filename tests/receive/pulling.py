"""Sources behind a real gate on a real journal, for a group of one: durable is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ha_engine.config import ReceiveConfig
from ha_engine.journal import Journal
from ha_engine.plugins import SourcePlace, SourcePlugin
from ha_engine.receive.gate import Gate
from ha_engine.receive.intake import Intake
from ha_engine.receive.pull.dead_letters import SourceDeadLetters
from ha_engine.receive.pull.messages import MessageDecoder
from ha_engine.receive.pull.puller import Puller, SourceStatus, Timing
from ha_engine.receive.receivers import Receivers
from ha_engine.types import Events
from tests.receive.solo import NoBacklog, SoloLog

SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("text", pa.string())])
TIMING = Timing(backoff_max=0.05, refused_max=0.05, late_after=1.0)

Make = Callable[[SourcePlace], SourcePlugin]


class Pulling:
    """One process with a closed gate; another instance on the same directory is the next
    process."""

    def __init__(
        self,
        directory: Path,
        config: ReceiveConfig | None = None,
        messages: MessageDecoder | None = None,
        **makes: Make,
    ) -> None:
        self.directory, self._messages = directory, messages
        self.journal = Journal.open(directory / "journal", group="solo")
        self.log, self.backlog = SoloLog(self.journal), NoBacklog()
        schemas = {"events": SCHEMA, "other": SCHEMA}
        self.gate = Gate(
            schemas,
            self.log,
            self.backlog,
            config or ReceiveConfig(),
            lambda: time.time_ns() // 1000,
        )
        for record in self.journal.read(self.journal.first, payloads=False):
            self.gate.replay(record)
        self.intake = Intake(self.gate)
        self.receivers = Receivers(
            self.gate, [self._puller(name, make) for name, make in makes.items()]
        )

    def _puller(self, name: str, make: Make) -> Puller:
        place = SourcePlace("solo", "events", name, SCHEMA)
        letters = SourceDeadLetters(self.directory, "events", name)
        return Puller(
            "events",
            name,
            "kind",
            lambda: make(place),
            self.intake,
            self.gate.offsets,
            letters,
            TIMING,
            self._messages,
        )

    def status(self, name: str) -> SourceStatus:
        [found] = [one for one in self.receivers.status() if one.source == name]
        return found

    def rows(self, stream: str = "events") -> list[dict[str, Any]]:
        """Return every row of the journal, in its order."""
        return [
            row
            for record in self.journal.read(self.journal.first)
            if isinstance(record.body, Events) and record.body.stream == stream
            for row in pa.ipc.read_record_batch(record.payload, SCHEMA).to_pylist()
        ]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    async def close(self) -> None:
        await self.receivers.stop()
        await self.log.close()
        self.journal.close()
