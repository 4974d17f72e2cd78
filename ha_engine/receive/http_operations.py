"""Describe the requests and answers of the receive stage's routes, for GET /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from ha_engine.auth import Right
from ha_engine.receive.cloud_events import Mode
from ha_engine.receive.decode import Format
from ha_engine.receive.intake import SEQUENCE_MAX
from ha_engine.web.route import Answer, Operation, Parameter, Refusal, described


@described
class PositionBody(TypedDict):
    """The position of a record in the journal."""

    epoch: int
    sequence: int


@described
class Acknowledged(TypedDict):
    """The events are durable on every node that is in sync."""

    accepted: int
    position: PositionBody
    """Position of the record. A repeated request gets the position of the record that first stored
    it."""


@described
class InvalidBody(Refusal):
    """The events do not match the stream's schema; nothing of the request is stored."""

    row: int | None
    """The first wrong row, counted from 0; null if no single row is wrong."""
    reason: str


@described
class ConflictBody(Refusal):
    """The node cannot accept the request's sequence."""

    conflict: str
    """'payload': the producer used the sequence for another payload. 'forgotten': the sequence is
    older than those that the node remembers."""


@described
class FullBody(Refusal):
    """The node takes no more events for now."""

    retry_after_seconds: float


@described
class ElsewhereBody(Refusal):
    """This node is not the active."""

    active: str | None
    """URL of the active; null if this node does not know it."""


@described
class ColumnBody(TypedDict):
    """A column of a stream."""

    name: str
    type: str
    """Arrow's name of the type."""
    nullable: bool


@described
class StreamBody(TypedDict):
    """A stream of the application."""

    name: str
    schema: list[ColumnBody]


ORIGIN = "WebHook-Request-Origin"
"""The header by which a sender of web hooks asks whether it may send."""

_Event = dict[str, Any]
_Sequence = Annotated[int, Field(ge=0, le=SEQUENCE_MAX)]
_ProducerId = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]
_Encoding = Annotated[str, Field(json_schema_extra={"enum": ["identity", "gzip"]})]
_STREAM = Parameter("stream", "path", "Name of a stream of the application.")
_UNKNOWN = Answer("The application has no such stream.")

_TAKEN = [
    _STREAM,
    Parameter("X-Producer-Id", "header", "The producer's id; needs X-Sequence.", _ProducerId),
    Parameter(
        "X-Sequence", "header", "The number of the request, which each retry repeats.", _Sequence
    ),
]
_GZIP = Parameter("Content-Encoding", "header", "Compression of the body.", _Encoding)
_REFUSED = {
    400: Answer("An event or the request is wrong. Nothing is stored.", InvalidBody),
    404: _UNKNOWN,
    408: Answer("The body did not arrive in time."),
    409: Answer(
        "The sequence belongs to another payload, or is older than the node remembers.",
        ConflictBody,
    ),
    413: Answer("The body is larger than http.max_body."),
    415: Answer("The content type or encoding is not supported."),
    429: Answer(
        "The node takes no more events for now.",
        FullBody,
        headers=[Parameter("Retry-After", "header", "Seconds until a retry makes sense.", int)],
    ),
    503: Answer("This node does not take events.", ElsewhereBody),
}

PUBLISH = Operation(
    "publish",
    "Send events. The node answers when the events are committed.",
    {
        200: Answer(
            "The events are stored, by this request or by the first one with its sequence.",
            Acknowledged,
        ),
        **_REFUSED,
    },
    takes=[*_TAKEN, _GZIP],
    body={
        Format.JSON.value: _Event | list[_Event],
        Format.NDJSON.value: str,
        Format.ARROW.value: bytes,
    },
    needs_body=True,
    needs=Right.INGEST,
)
CLOUD_EVENTS = Operation(
    "publish_cloudevents",
    "Send CloudEvents in binary, structured or batched mode. The node answers when the events are "
    "committed.",
    {204: Answer("The events are stored.", None), **_REFUSED},
    takes=[
        *_TAKEN,
        _GZIP,
        *(
            Parameter(f"ce-{name}", "header", f"In binary mode, the {name} of the event.")
            for name in ("specversion", "id", "source", "type")
        ),
    ],
    body={
        Mode.STRUCTURED.value: _Event,
        Mode.BATCH.value: list[_Event],
        Format.JSON.value: _Event | list[_Event],
    },
    needs=Right.INGEST,
)
ALLOW = Operation(
    "allow_cloudevents",
    "Ask whether a sender of web hooks may send CloudEvents to the stream.",
    {
        200: Answer(
            "The sender may send.",
            None,
            headers=[
                Parameter("Allow", "header", "The methods of this path."),
                Parameter("WebHook-Allowed-Origin", "header", "The sender that asked."),
                Parameter("WebHook-Allowed-Rate", "header", "'*', which is any rate."),
            ],
        ),
        404: _UNKNOWN,
    },
    [_STREAM, Parameter(ORIGIN, "header", "The host name of the sender that asks.")],
    needs=Right.INGEST,
)
REMOTE_WRITE = Operation(
    "remote_write",
    "Send samples as Prometheus remote write, 1.0 or 2.0, does. The node answers when the samples "
    "are committed.",
    {
        204: Answer(
            "The samples are stored.",
            None,
            headers=[
                Parameter(
                    f"X-Prometheus-Remote-Write-{what}-Written",
                    "header",
                    "How many are stored.",
                    int,
                )
                for what in ("Samples", "Histograms", "Exemplars")
            ],
        ),
        **{status: answer for status, answer in _REFUSED.items() if status not in (408, 429)},
        503: Answer(
            "This node does not take events, or no more for now, or the body did not arrive in "
            "time.",
            ElsewhereBody | FullBody | Refusal,
        ),
    },
    takes=[
        *_TAKEN,
        Parameter("Content-Encoding", "header", "Compression of the body.", Literal["snappy"]),
    ],
    body={"application/x-protobuf": bytes},
    needs_body=True,
    needs=Right.INGEST,
)
STREAM = Operation(
    "stream",
    "Show the columns of a stream.",
    {200: Answer("The columns, as the application declares them.", StreamBody), 404: _UNKNOWN},
    [_STREAM],
    needs=Right.INGEST,
)
