"""The ``ha_journal`` data source, as Spark knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ha_engine.query.source_reader import JournalReader

FORMAT = "ha_journal"


class JournalSource(DataSource):  # type: ignore[misc]
    """The ``ha_journal`` data source as Spark registers it. Spark passes the schema to
    ``streamReader``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> JournalReader:
        """Return the reader of the source.

        Only this method imports Arrow, so that Spark's first worker creates the source without
        Arrow.
        """
        from ha_engine.query.source_reader import JournalReader, SourceOptions

        return JournalReader(SourceOptions.from_text(dict(self.options)), schema)
