"""The table of a sink whose buckets tasks write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha_engine.buckets.place import BucketPlace, Table
from ha_engine.postgres.engine import open_engine
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.postgres.sink_table import Target

if TYPE_CHECKING:
    from sqlalchemy import Engine


def table_of(place: BucketPlace, table: Table) -> tuple[Engine, LedgerKey, Target]:
    """The database of the sink at ``place``, the key of its ledger rows, and its table."""
    engine = open_engine(
        table.url,
        connect_timeout=table.connect_timeout,
        statement_timeout=place.timeout,
        application_name="ha-engine bucket",
    )
    key = LedgerKey(place.group, place.query, place.sink)
    return engine, key, Target(table.name, table.mode, place.key)
