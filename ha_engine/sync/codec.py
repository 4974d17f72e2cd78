"""Convert the cores' messages to the frames of sync.proto, and back.

Records are sent as the journal's own frames. The sender copies the bytes of records in files, and
encodes records in memory again, to the same bytes. The receiver verifies the checksums of every
record. A frame that this engine does not understand ends one link and never the node.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ha_engine.core.messages import (
    Ack,
    BatchDigest,
    Committed,
    Follow,
    Heartbeat,
    Message,
    Probe,
    ProbeReply,
    Promise,
    Records,
    Released,
    SnapshotFailed,
    SnapshotLacking,
    SnapshotTaken,
    TakeSnapshot,
)
from ha_engine.journal.record import (
    HEADER_BYTES,
    BadFrame,
    decode_header,
    encode,
    to_record,
    verified,
)
from ha_engine.journal.record import to_frame as written_frame
from ha_engine.types import Position, Record, SnapshotPlace
from ha_engine.v1 import sync_pb2 as pb

TEXT_MAX = 300


class MalformedFrame(Exception):
    """The peer sent a frame that this engine does not understand; the link ends."""


def to_sync_frame(message: Message) -> pb.SyncFrame:
    match message:
        case Probe(epoch):
            return pb.SyncFrame(probe=pb.Probe(epoch=epoch))
        case ProbeReply():
            return pb.SyncFrame(probe_reply=_from_probe_reply(message))
        case Follow():
            return pb.SyncFrame(follow=_from_follow(message))
        case Records(epoch, previous, records, committed):
            return records_frame(epoch, previous, b"".join(map(encode, records)), committed)
        case Committed(epoch, committed):
            return pb.SyncFrame(committed=pb.Committed(epoch=epoch, committed=committed))
        case Heartbeat(epoch, committed, request, oldest_revision):
            heartbeat = pb.Heartbeat(
                epoch=epoch, committed=committed, request=request, oldest_revision=oldest_revision
            )
            return pb.SyncFrame(heartbeat=heartbeat)
        case Ack():
            return pb.SyncFrame(ack=_from_ack(message))
        case Promise(epoch, request, journal_id):
            promise = pb.Promise(epoch=epoch, request=request, journal_id=journal_id)
            return pb.SyncFrame(promise=promise)
        case Released(epoch):
            return pb.SyncFrame(released=pb.Released(epoch=epoch))
        case BatchDigest(epoch, query, number, digest):
            batch = pb.BatchDigest(epoch=epoch, query=query, number=number, digest=digest)
            return pb.SyncFrame(batch_digest=batch)
        case TakeSnapshot(epoch, place):
            return pb.SyncFrame(take_snapshot=_from_place(epoch, place))
        case SnapshotTaken():
            return pb.SyncFrame(snapshot_taken=_from_taken(message))
        case SnapshotFailed(epoch, request, reason):
            failed = pb.SnapshotFailed(epoch=epoch, request=request, reason=reason[:TEXT_MAX])
            return pb.SyncFrame(snapshot_failed=failed)
        case SnapshotLacking(epoch, reason):
            lacking = pb.SnapshotLacking(epoch=epoch, reason=reason[:TEXT_MAX])
            return pb.SyncFrame(snapshot_lacking=lacking)


def records_frame(epoch: int, previous: Position, frames: bytes, committed: int) -> pb.SyncFrame:
    """Build a Records message from ``frames``, which are encoded records one after the other."""
    records = pb.Records(
        epoch=epoch, previous=_from_position(previous), committed=committed, frames=frames
    )
    return pb.SyncFrame(records=records)


def to_message(frame: pb.SyncFrame) -> Message:
    """Decode a message of a core. Raises MalformedFrame, also for frames that only open a link."""
    match frame.WhichOneof("frame"):
        case "probe":
            return Probe(frame.probe.epoch)
        case "probe_reply":
            return _to_probe_reply(frame.probe_reply)
        case "follow":
            return _to_follow(frame.follow)
        case "records":
            return _to_records(frame.records)
        case "committed":
            return Committed(frame.committed.epoch, frame.committed.committed)
        case "heartbeat":
            beat = frame.heartbeat
            return Heartbeat(beat.epoch, beat.committed, beat.request, beat.oldest_revision)
        case "ack":
            return _to_ack(frame.ack)
        case "promise":
            promise = frame.promise
            return Promise(promise.epoch, promise.request, promise.journal_id)
        case "released":
            return Released(frame.released.epoch)
        case "batch_digest":
            batch = frame.batch_digest
            return BatchDigest(batch.epoch, batch.query, batch.number, batch.digest)
        case "take_snapshot":
            return TakeSnapshot(frame.take_snapshot.epoch, _to_place(frame.take_snapshot))
        case "snapshot_taken":
            return _to_taken(frame.snapshot_taken)
        case "snapshot_failed":
            failed = frame.snapshot_failed
            return SnapshotFailed(failed.epoch, failed.request, failed.reason[:TEXT_MAX])
        case "snapshot_lacking":
            lacking = frame.snapshot_lacking
            return SnapshotLacking(lacking.epoch, lacking.reason[:TEXT_MAX])
        case other:
            raise MalformedFrame(
                f"the peer sent {other or 'an unknown frame'} instead of a message"
            )


# -- parts -----------------------------------------------------------------------------------------


def _from_position(position: Position) -> pb.Position:
    return pb.Position(epoch=position.epoch, sequence=position.sequence)


def _to_position(position: pb.Position) -> Position:
    return Position(position.epoch, position.sequence)


def _from_probe_reply(reply: ProbeReply) -> pb.ProbeReply:
    return pb.ProbeReply(
        epoch=reply.epoch,
        journal_id=reply.journal_id,
        last=_from_position(reply.last),
        committed=reply.committed,
        epochs=map(_from_position, reply.epochs),
    )


def _to_probe_reply(reply: pb.ProbeReply) -> ProbeReply:
    return ProbeReply(
        reply.epoch,
        reply.journal_id,
        _to_position(reply.last),
        reply.committed,
        tuple(map(_to_position, reply.epochs)),
    )


def _from_follow(follow: Follow) -> pb.Follow:
    return pb.Follow(
        epoch=follow.epoch,
        journal_id=follow.journal_id,
        shared_end=_from_position(follow.shared_end),
        replied_end=_from_position(follow.replied_end),
        forced=follow.forced,
        begins=_from_position(follow.begins),
        epochs=map(_from_position, follow.epochs),
    )


def _to_follow(follow: pb.Follow) -> Follow:
    return Follow(
        follow.epoch,
        follow.journal_id,
        _to_position(follow.shared_end),
        _to_position(follow.replied_end),
        follow.forced,
        _to_position(follow.begins),
        tuple(map(_to_position, follow.epochs)),
    )


def _from_ack(ack: Ack) -> pb.Ack:
    return pb.Ack(
        epoch=ack.epoch,
        journal_id=ack.journal_id,
        durable=ack.durable,
        headroom=ack.headroom,
        warm=ack.warm,
        batches=[pb.QueryBatch(query=query, number=number) for query, number in ack.batches],
        leaves=ack.leaves,
    )


def _to_ack(ack: pb.Ack) -> Ack:
    batches = tuple((batch.query, batch.number) for batch in ack.batches)
    return Ack(ack.epoch, ack.journal_id, ack.durable, ack.headroom, ack.warm, batches, ack.leaves)


def _from_place(epoch: int, place: SnapshotPlace) -> pb.TakeSnapshot:
    return pb.TakeSnapshot(
        epoch=epoch,
        request=place.request,
        position=_from_position(place.position),
        batches=[pb.QueryBatch(query=query, number=number) for query, number in place.batches],
        last_mark=_from_position(place.last_mark),
    )


def _to_place(wanted: pb.TakeSnapshot) -> SnapshotPlace:
    batches = tuple((batch.query, batch.number) for batch in wanted.batches)
    position, last_mark = _to_position(wanted.position), _to_position(wanted.last_mark)
    return SnapshotPlace(wanted.request, position, batches, last_mark)


def _from_taken(taken: SnapshotTaken) -> pb.SnapshotTaken:
    return pb.SnapshotTaken(
        epoch=taken.epoch,
        request=taken.request,
        draft=taken.draft,
        batches=[pb.CapturedBatch(query=q, number=n, digest=d) for q, n, d in taken.batches],
    )


def _to_taken(taken: pb.SnapshotTaken) -> SnapshotTaken:
    batches = tuple((batch.query, batch.number, batch.digest) for batch in taken.batches)
    return SnapshotTaken(taken.epoch, taken.request, taken.draft, batches)


# -- records ---------------------------------------------------------------------------------------


def _to_records(message: pb.Records) -> Records:
    previous = _to_position(message.previous)
    try:
        records = tuple(_decoded(message.frames))
    except (BadFrame, RecursionError) as error:
        raise MalformedFrame(f"the peer sent a damaged record: {error}") from error
    _check_chain(previous, records)
    return Records(message.epoch, previous, records, message.committed)


def _decoded(frames: bytes) -> Iterator[Record]:
    offset = 0
    while offset < len(frames):
        header = decode_header(frames[offset : offset + HEADER_BYTES])
        start = offset + HEADER_BYTES
        middle, offset = start + header.meta_length, offset + header.frame_length
        meta = verified(frames[start:middle], header.meta_length, header.meta_crc, "meta")
        payload = frames[middle:offset]
        verified(payload, header.payload_length, header.payload_crc, "payload")
        record = to_record(header, meta, payload)
        _check_same(record, frames[offset - header.frame_length : middle])
        yield record


def _check_same(record: Record, head: bytes) -> None:
    """Refuse a record that this node would encode to different bytes (RULES.md#i8).

    Raises MalformedFrame.
    """
    try:
        same = written_frame(record).head == head
    except (TypeError, ValueError, UnicodeError, struct.error):
        same = False
    if not same:
        raise MalformedFrame(
            f"the peer sent record {record.position} in the format of another engine"
        )


def _check_chain(previous: Position, records: tuple[Record, ...]) -> None:
    for record in records:
        position = record.position
        if position.sequence != previous.sequence + 1 or position.epoch < previous.epoch:
            raise MalformedFrame(f"the peer sent record {position} directly after {previous}")
        previous = position
