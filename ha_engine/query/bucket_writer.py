"""Let Spark's tasks write a batch to the query's sink, one bucket a task (RULES.md#r34)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.errors import Fenced, QueryProcessFailed, SinkRefused, SinkUnavailable
from ha_engine.query.link import NodeLink
from ha_engine.v1 import local_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

READY_SECONDS = 5.0
"""A batch fails after this time if the node has not claimed the sink, and the node starts the query
again. A longer wait would delay the end of a query that the node halts."""
_WORST_FIRST = (Fenced, SinkRefused, SinkUnavailable)


class BucketWriter:
    """Writes the batches of one query under the epoch of its RunQuery."""

    def __init__(self, link: NodeLink, query: str, epoch: int) -> None:
        self._link, self._query, self._epoch = link, query, epoch

    def write(self, number: int, frame: DataFrame) -> int:
        """Write the buckets of batch ``number`` that the sink lacks, and return the batch's rows.

        A row's bucket is a hash of its key, or of the whole row without a key. So each run of a
        batch divides its rows alike.

        Raises Fenced, SinkRefused, SinkUnavailable and QueryProcessFailed.
        """
        from ha_engine.buckets.atomic import begin, commit, is_atomic
        from ha_engine.buckets.task import require_seen

        place = self.place()
        divided = _once(frame.repartition(place.buckets, *_hashed(frame.schema, place.key)))
        sizes = _sizes(divided)
        # The tasks have read the batch. The node now compares the topics with the journal again,
        # since one that changed meanwhile has given other rows.
        place = self.place()
        if not is_atomic(place):
            _run_tasks(place, number, divided, sizes)
            require_seen(place, number, sizes)
        elif not sizes:
            commit(place, number, frame.columns, None, {})
        elif (stage := begin(place, number, frame.columns)) is not None:
            outcomes = _run_tasks(place, number, divided, sizes, stage)
            staged = {outcome["task"]: outcome["staged"] for outcome in outcomes}
            commit(place, number, frame.columns, stage, staged)
        return sum(sizes.values())

    def place(self) -> BucketPlace:
        """The place where the tasks write. Raises SinkUnavailable while they may not."""
        incarnation = self._link.address.incarnation
        request = pb.LocateBucketsRequest(
            incarnation=incarnation, query=self._query, epoch=self._epoch
        )
        waiting = Retrying(
            retry=retry_if_result(lambda reply: reply.pending),
            wait=wait_fixed(0.2),
            stop=stop_after_delay(READY_SECONDS),
        )
        try:
            reply = waiting(self._link.call, self._link.stub.LocateBuckets, request)
        except RetryError as error:
            raise SinkUnavailable(
                f"the sink of query {self._query} is not claimed yet; the status of the sink has "
                "the reason, and the node retries"
            ) from error
        return self._place_in(reply)

    def _place_in(self, reply: pb.LocateBucketsReply) -> BucketPlace:
        return BucketPlace(
            group=reply.group,
            group_id=reply.group_id,
            query=self._query,
            sink=reply.sink,
            epoch=self._epoch,
            key=tuple(reply.key),
            buckets=reply.buckets,
            timeout=reply.timeout,
            target=_target_in(reply),
        )


def _run_tasks(
    place: BucketPlace,
    number: int,
    divided: DataFrame,
    sizes: dict[int, int],
    stage: str | None = None,
) -> list[dict[str, Any]]:
    """Let a task write each partition, and return their outcomes. Raises the worst of their
    errors."""
    from ha_engine.buckets.task import OUTCOME_DDL, error_of, write_partition

    write = partial(write_partition, place, number, sizes, stage)
    outcomes: list[dict[str, Any]] = divided.mapInArrow(write, OUTCOME_DDL).toArrow().to_pylist()
    errors = [error for outcome in outcomes if (error := error_of(place, outcome))]
    if errors:
        raise min(errors, key=lambda error: _WORST_FIRST.index(type(error)))
    if sorted(outcome["bucket"] for outcome in outcomes) != list(range(place.buckets)):
        raise QueryProcessFailed(f"not every bucket of batch {number} was written once")
    return outcomes


def _target_in(reply: pb.LocateBucketsReply) -> Table | Plugin:
    if reply.HasField("plugin"):
        plugin = reply.plugin
        return Plugin(plugin.kind, plugin.options, plugin.messages, plugin.directory)
    table = reply.table
    mode = cast(Literal["insert", "upsert"], table.mode)
    return Table(table.url, table.connect_timeout, table.name, mode, table.atomic)


def _once(divided: DataFrame) -> DataFrame:
    """A frame with the same partitions, of which Spark runs the part before the shuffle once,
    however many jobs read it."""
    from pyspark.sql import DataFrame

    session, java = divided.sparkSession, divided._jdf
    rows = java.queryExecution().toRdd()
    again = session._jsparkSession.internalCreateDataFrame(rows, java.schema(), False)
    return DataFrame(again, session)


def _sizes(divided: DataFrame) -> dict[int, int]:
    """The number of rows in each partition that has rows."""
    from pyspark.sql.functions import spark_partition_id

    counts = divided.groupBy(spark_partition_id().alias("bucket")).count().toArrow()
    return {row["bucket"]: row["count"] for row in counts.to_pylist()}


def _hashed(schema: StructType, key: tuple[str, ...]) -> list[str]:
    """The columns by whose hash Spark divides the rows, without those that Spark cannot hash.

    Raises SinkRefused if no column is left.
    """
    names = [
        field.name
        for field in schema.fields
        if (not key or field.name in key) and not _has_map(field.dataType)
    ]
    if not names:
        raise SinkRefused(
            "buckets need a column besides maps, by which the rows are divided; select one, or "
            "remove buckets"
        )
    return [f"`{name.replace('`', '``')}`" for name in names]


def _has_map(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case MapType():
            return True
        case ArrayType(elementType=element):
            return _has_map(element)
        case StructType(fields=fields):
            return any(_has_map(field.dataType) for field in fields)
        case _:
            return False
