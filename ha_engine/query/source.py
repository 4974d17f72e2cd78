"""The ``ha_journal`` data source, as Spark knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ha_engine.query.source_reader import JournalReader

FORMAT = "ha_journal"


class JournalSource(DataSource):  # type: ignore[misc]
    """The data source as Spark registers it. Spark passes the schema to ``streamReader``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> JournalReader:
        """Import Arrow only here: Spark's first worker creates the source alone, without Arrow."""
        from ha_engine.query.source_reader import JournalReader, SourceOptions

        return JournalReader(SourceOptions.from_text(dict(self.options)), schema)
