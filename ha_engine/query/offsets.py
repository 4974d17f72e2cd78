"""The mark of a Spark batch, read from the checkpoint's offset log (RULES.md#r18).

Spark's batch numbers may differ between nodes; only a mark means the same batch on every node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ha_engine.errors import QueryProcessFailed
from ha_engine.query.checkpoint_files import batches_of
from ha_engine.query.object_path import CheckpointPath, ObjectPath, listed_again
from ha_engine.system.disk import disk
from ha_engine.system.files import replace_file

_NO_OFFSET = "-"
_HEADING_LINES = 2  # the version of the log's format, and Spark's metadata of the batch
_METADATA_LINE = 1
_WATERMARKS = "ha_engine.watermarks"


class SourcesDisagree(QueryProcessFailed):
    """The sources of one batch end at different marks, so no other node would run that batch."""


def mark_of_batch(checkpoint: CheckpointPath, batch_id: int) -> int:
    """The mark that every source of Spark's batch ``batch_id`` names. Raises SourcesDisagree."""
    marks = set(_marks(checkpoint / "offsets" / str(batch_id)))
    if len(marks) != 1:
        found = ", ".join(str(mark) for mark in sorted(marks)) or "none"
        raise SourcesDisagree(
            f"the sources of batch {batch_id} in {checkpoint} name marks {found} instead of one; "
            "the query stops, so that its state is rebuilt"
        )
    return marks.pop()


def partitions_of_batch(checkpoint: CheckpointPath, batch_id: int) -> int:
    """The number of partitions of the state after Spark's batch ``batch_id``. Raises OSError."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[_METADATA_LINE])["conf"]["spark.sql.shuffle.partitions"])


def unfinished_mark(checkpoint: CheckpointPath) -> int:
    """The mark of the batch that was started but not finished; 0 if every batch is finished."""
    checkpoint = listed_again(checkpoint)  # Spark has written to it since it was opened
    started, finished = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if started is None or started == finished:
        return 0
    return max(_marks(checkpoint / "offsets" / str(started)), default=0)


def add_sources(checkpoint: CheckpointPath, sources: int) -> None:
    """Give the offset log as many sources as the query has, before Spark reads the log.

    Spark requires one offset for each source, in the order of the sources. All sources of a batch
    are at one mark, and each source understands an offset with the number and the sequence of the
    mark. So a source that the query did not have continues at the mark of the others.

    Spark itself refuses a query that has lost a source. Raises DiskFailed.
    """
    newest = sorted(batches_of(checkpoint / "offsets"))[-2:]  # Spark reads no older ones
    for number in newest:
        log = checkpoint / "offsets" / str(number)
        *heading, last = log.read_text(encoding="utf-8").splitlines()
        if len(heading) + 1 - _HEADING_LINES < sources:
            mark = json.loads(last)
            offset = json.dumps({"mark": mark["mark"], "sequence": mark["sequence"]})
            lines = [*heading[:_HEADING_LINES], *[offset] * sources]
            _replace(log, "\n".join(lines).encode(), durable=True)


def note_watermarks(
    checkpoint: CheckpointPath, batch_id: int, digest: str, watermarks: Sequence[int | None]
) -> None:
    """Write the watermark of each stream after Spark's batch ``batch_id`` to the offset log.

    ``digest`` is that of the query, which says what streams there are. ``watermarks`` are in
    milliseconds since 1970. Spark ignores a setting that it does not know. Raises DiskFailed.
    """
    log = checkpoint / "offsets" / str(batch_id)
    lines = log.read_text(encoding="utf-8").splitlines()
    metadata = json.loads(lines[_METADATA_LINE])
    metadata["conf"][_WATERMARKS] = json.dumps({"query": digest, "streams": list(watermarks)})
    lines[_METADATA_LINE] = json.dumps(metadata)
    _replace(log, "\n".join(lines).encode(), durable=False)  # Spark does not fsync it either


def watermarks_before(checkpoint: CheckpointPath, batch_id: int, digest: str) -> list[int | None]:
    """The watermark of each stream before Spark's batch ``batch_id``, or after it if the batch was
    run before.

    The list is empty if the query with this digest has noted none. Raises OSError.
    """
    for number in (batch_id, batch_id - 1):
        try:
            log = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        text = json.loads(log.splitlines()[_METADATA_LINE])["conf"].get(_WATERMARKS)
        if text is not None:
            noted = json.loads(text)
            return list(noted["streams"]) if noted["query"] == digest else []
    return []


def _replace(log: CheckpointPath, content: bytes, *, durable: bool) -> None:
    if isinstance(log, ObjectPath):
        log.write_bytes(content)
        return
    with disk(log.parent):
        log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
        # A snapshot may have a link to the file, so that it must not be written in place.
        if durable:
            replace_file(log, [content])
        else:
            draft = log.with_name(f".{log.name}.tmp")  # which the next start deletes
            draft.write_bytes(content)
            draft.replace(log)


def mark_of(offset: str | None) -> int:
    """The mark in an offset that Spark wrote; 0 if there is no offset."""
    return int(json.loads(offset)["mark"]) if offset else 0


def _marks(log: CheckpointPath) -> Iterator[int]:
    for line in log.read_text(encoding="utf-8").splitlines()[_HEADING_LINES:]:
        if line and line != _NO_OFFSET:
            yield mark_of(line)


def _last(directory: CheckpointPath) -> int | None:
    return max(batches_of(directory), default=None)
