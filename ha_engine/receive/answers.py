"""The answers to a request over gRPC, from a producer or from a node that forwards it."""

from __future__ import annotations

from ha_engine.errors import (
    Backpressure,
    InvalidEvents,
    NotActive,
    PayloadTooLarge,
    Rejected,
    SequenceConflict,
    SequenceForgotten,
    TooManyProducers,
    UnknownStream,
    UnsupportedFormat,
)
from ha_engine.receive.gate import Receipt
from ha_engine.v1 import ingest_pb2 as pb

_REASONS: dict[type[Rejected], pb.EventsRefused.Reason.ValueType] = {
    InvalidEvents: pb.EventsRefused.INVALID_EVENTS,
    UnsupportedFormat: pb.EventsRefused.INVALID_EVENTS,
    UnknownStream: pb.EventsRefused.UNKNOWN_STREAM,
    PayloadTooLarge: pb.EventsRefused.TOO_LARGE,
    SequenceConflict: pb.EventsRefused.SEQUENCE_CONFLICT,
    SequenceForgotten: pb.EventsRefused.SEQUENCE_FORGOTTEN,
    Backpressure: pb.EventsRefused.BACKPRESSURE,
    TooManyProducers: pb.EventsRefused.BACKPRESSURE,
    NotActive: pb.EventsRefused.NOT_ACTIVE,
}


def stored(request_id: int, receipt: Receipt) -> pb.PublishAnswer:
    position = receipt.position
    events = pb.EventsStored(
        accepted=receipt.accepted, epoch=position.epoch, sequence=position.sequence
    )
    return pb.PublishAnswer(id=request_id, stored=events)


def refused(request_id: int, refusal: Rejected) -> pb.PublishAnswer:
    """The answer to a refused request, without the address of the active."""
    said = pb.EventsRefused(reason=_REASONS[type(refusal)], error=str(refusal))
    match refusal:
        case InvalidEvents(row=int(row), reason=reason):
            said.row, said.error = row, reason
        case Backpressure(retry_after_seconds=seconds):
            said.retry_after_seconds = seconds
        case NotActive(active=str(active)):
            said.active = active
    return pb.PublishAnswer(id=request_id, refused=said)
