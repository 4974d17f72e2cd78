"""Write one bucket of a batch with an instance of a plug-in, as a task of Spark.

A kind with a ledger of its own claims the bucket, which fences each earlier task of that bucket,
also one of the same epoch. Any other kind names what it creates after the batch and the bucket.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa

from ha_engine.buckets.place import BucketPlace, Plugin
from ha_engine.errors import ConfigError, SinkRefused
from ha_engine.formats.messages import MessageOptions
from ha_engine.outbox.batch_file import in_canonical_form
from ha_engine.plugins import (
    Claim,
    LedgerSinkPlugin,
    OutputBatch,
    SinkPlace,
    SinkPlugin,
    keeps_ledger,
    sink_kind,
)
from ha_engine.plugins.options import validated
from ha_engine.postgres.ledger import LedgerKey
from ha_engine.publish.sinks.messages import MessageEncoder, encoder_of


def bucket_of(place: SinkPlace, bucket: int, buckets: int) -> SinkPlace:
    """The place of one bucket of the sink at ``place``."""
    name = LedgerKey(place.group, place.query, place.sink).of_bucket(bucket, buckets).sink
    return replace(place, sink=name, bucket=f"{bucket}-of-{buckets}")


class PluginBucket:
    """One bucket of a sink, with an instance of the plug-in. Raises SinkRefused if this host lacks
    a file that the options name."""

    def __init__(self, place: BucketPlace, plugin: Plugin, bucket: int) -> None:
        self._place, kind = place, sink_kind(plugin.kind)
        where = f"query {place.query}: sink {place.sink}"
        try:
            self._encoder = _encoder(where, kind, plugin)
            options = validated(where, kind.Options, json.loads(plugin.options))
        except ConfigError as error:
            raise SinkRefused(str(error)) from error
        attributes = frozenset() if self._encoder is None else self._encoder.attributes
        whole = SinkPlace(place.group, place.query, place.sink, _refuse, attributes)
        self._at = bucket_of(whole, bucket, place.buckets)
        self._sink = kind(options, self._at)
        self._keeps_ledger = keeps_ledger(kind)

    def deliver(self, number: int, rows: pa.Table | None) -> bool:
        """Deliver batch ``number``, and return False if a ledger has it already.

        ``rows`` is None if the bucket has no rows. Raises SinkUnavailable, SinkRefused or Fenced.
        """
        until = time.monotonic() + self._place.timeout

        def remaining() -> float:
            return until - time.monotonic()

        if self._keeps_ledger:
            # The node has claimed the bucket, so only a record that was lost begins at 0.
            claim = Claim(self._place.epoch, 0, self._place.group_id, remaining)
            if cast(LedgerSinkPlugin, self._sink).claim(claim) >= number:
                return False
        elif rows is None:
            return True
        table = in_canonical_form(pa.table({}) if rows is None else rows)
        encoder, at = self._encoder, self._at
        key = "/".join((at.group, at.query, at.sink, str(number)))
        batch = OutputBatch(number, table.num_rows, key, lambda: table, remaining)
        if encoder is not None:
            batch = replace(batch, messages=lambda: encoder.messages(table))
        self._sink.deliver(batch)
        return True

    def require_seen(self, number: int) -> None:
        """Raise SinkRefused if the task has delivered to a place that this host does not see."""
        has = getattr(self._sink, "has", None)
        if has is not None and not has(number):
            raise SinkRefused(
                f"a task wrote bucket {self._at.bucket} of batch {number} of sink "
                f"{self._place.sink}, but this host does not see it; let all hosts share the "
                "directory of the sink"
            )

    def close(self) -> None:
        """Close all connections."""
        self._sink.close()


def _encoder(where: str, kind: type[SinkPlugin], plugin: Plugin) -> MessageEncoder | None:
    if not plugin.messages:
        return None
    options = validated(where, MessageOptions, json.loads(plugin.messages))
    assert isinstance(options, MessageOptions)
    return encoder_of(where, kind, options, Path(plugin.directory))


def _refuse(batch: OutputBatch, reason: str, rows: pa.Table) -> None:
    raise SinkRefused(f"{reason}; a sink with buckets has no dead letters")
