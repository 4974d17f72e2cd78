"""A query process with state and without Spark: each row has the number of the events so far.

The text of a row is the version in the query's SQL, such as ``v1``, and the number of the event
since the state began. So a row shows which code made it, and whether a state lost an event or took
one twice.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pyarrow as pa

from ha_engine.query.application import SqlText, StreamApplication
from ha_engine.query.application_versions import ApplicationVersions
from ha_engine.query.checkpoint_files import last_finished
from ha_engine.query.checkpoints import adopt
from ha_engine.query.process import FAILED_EXIT_CODE
from ha_engine.query.settings import Settings
from ha_engine.types import Mark
from ha_engine.v1 import local_pb2 as pb
from tests.faults.matrix.stand_in import COLUMNS, STREAM, JournalCopies, serve, write_offset

VERSION = re.compile(r"v\d+")
FAILS = "fails"
"""A query with this word in its SQL fails in each batch with events."""


class CountingQueries(JournalCopies):
    """Counts the events of one stream in the state of each query."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        # By the lineage of a run, the number of events up to each batch that it has made.
        self._counts: dict[str, dict[int, int]] = {}
        self._sql: dict[str, str] = {}

    def prepare(self, run: pb.RunQuery) -> None:
        """Load the version of the application that the node runs, or that of the shadow."""
        path = Path(run.application)
        application = ApplicationVersions(path).holding(run.shadow_of or run.query, run.digest)
        self._sql[run.digest] = _sql_of(application, run.shadow_of or run.query)
        self._events = application.streams[STREAM].arrow_schema
        self.schema = pa.schema([self._events.field(name) for name in COLUMNS])

    def last_batch(self, run: pb.RunQuery) -> Mark:
        if run.adopts:
            self.halt(run.adopts)
            adopt(self._checkpoints, run.query, run.adopts, run.adopts_lineage, run.lineage)
        mark = super().last_batch(run)
        checkpoint, count = self._opened[run.query], 0
        if (last := last_finished(checkpoint)) is not None:
            offset = (checkpoint / "offsets" / str(last)).read_text().splitlines()[-1]
            count = json.loads(offset)["count"]
        self._counts[run.lineage] = {mark.number: count}
        return mark

    def rows(self, run: pb.RunQuery, before: Mark, mark: Mark) -> pa.Table:
        table, sql = super().rows(run, before, mark), self._sql[run.digest]
        counts = self._counts[run.lineage]
        first = counts[before.number]
        counts[mark.number] = first + len(table)
        if FAILS in sql and len(table):
            os._exit(FAILED_EXIT_CODE)
        version = VERSION.search(sql)
        label = version[0] if version else ""
        texts = [f"{label} {first + index + 1}" for index in range(len(table))]
        return table.set_column(1, self.schema.field(1), pa.array(texts, self.schema.types[1]))

    def batch_ended(self, run: pb.RunQuery, mark: Mark) -> None:
        count = self._counts[run.lineage][mark.number]
        write_offset(self._opened[run.query], mark, count=count)


def _sql_of(application: StreamApplication, query: str) -> str:
    text = application.queries[query].text
    assert isinstance(text, SqlText)
    return text.text


if __name__ == "__main__":
    serve(sys.argv[1:], CountingQueries)
