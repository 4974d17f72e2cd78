"""Encodes a record as a frame of bytes, and decodes frames. This module does not use files.

A frame has three parts: a header of 52 bytes, the meta and the payload. The meta is the record's
body as compact JSON in ASCII. The header is little-endian, and has these fields with their lengths
in bytes:

    magic 4 | CRC32C of what follows in the header 4 | version 1 | kind 1 | zero 2
    meta length 4 | payload length 4 | meta CRC32C 4 | payload CRC32C 4
    epoch 8 | sequence 8 | committed 8

Header, meta and payload each have a checksum. A length is verified before it is used, which
distinguishes a truncated record from a damaged one. A reader that skips payloads still verifies
everything that it returns.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple

from google_crc32c import value as crc32c

from ha_engine.types import (
    Application,
    Body,
    Deployed,
    EpochStart,
    Events,
    Mark,
    Position,
    Published,
    Pulled,
    QueryVersion,
    Record,
    RecordKind,
    Skip,
    Submission,
)

MAGIC = b"\xf5HAJ"
"""The first byte of the magic never occurs in UTF-8, so no text payload looks like the start of a
frame."""

VERSION = 1
HEADER_BYTES = 52

_DEPLOYED, _WITH_SHADOWS = "deployed", "deployed_with_shadows"
_START = struct.Struct("<4sI")
_REST = struct.Struct("<BB2xIIIIQQQ")


class Header(NamedTuple):
    """The header of a frame, with a verified checksum. Lengths are in bytes."""

    version: int
    kind: int
    meta_length: int
    payload_length: int
    meta_crc: int
    payload_crc: int
    epoch: int
    sequence: int
    committed: int

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.sequence)

    @property
    def frame_length(self) -> int:
        return HEADER_BYTES + self.meta_length + self.payload_length


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded record. The payload is in a separate buffer, so that it is not copied."""

    position: Position
    head: bytes
    payload: bytes

    @property
    def length(self) -> int:
        return len(self.head) + len(self.payload)


class BadFrame(Exception):
    """The bytes of a frame are no whole record. A caller that knows file and offset turns a
    BadFrame into an error for users."""


class NewerVersion(BadFrame):
    """The frame is intact, but has a format version that this engine does not read
    (RULES.md#r32)."""


# -- frames ----------------------------------------------------------------------------------------


def to_frame(record: Record) -> Frame:
    kind, text = _written(record.body)
    meta, payload, position = text.encode("ascii"), record.payload, record.position
    rest = _REST.pack(
        VERSION,
        kind,
        len(meta),
        len(payload),
        crc32c(meta),
        crc32c(payload) if payload else 0,
        position.epoch,
        position.sequence,
        record.committed,
    )
    return Frame(position, _START.pack(MAGIC, crc32c(rest)) + rest + meta, payload)


def encode(record: Record) -> bytes:
    """The frame of ``record`` as one bytes object."""
    frame = to_frame(record)
    return frame.head + frame.payload


def decode(frame: bytes, *, payload: bool = True) -> Record:
    """Decode exactly one frame. Raises BadFrame.

    Without ``payload``, the record gets an empty payload, and the payload's checksum is not
    verified.
    """
    header = decode_header(frame[:HEADER_BYTES])
    if len(frame) != header.frame_length:
        raise BadFrame(f"the frame has {len(frame)} bytes instead of {header.frame_length}")
    return _decoded(frame, 0, header, payload)


def decode_all(frames: bytes) -> Iterator[Record]:
    """Decode whole frames, one after the other, and verify every byte of them. Raises BadFrame."""
    start = 0
    while start < len(frames):
        header = decode_header(frames[start : start + HEADER_BYTES])
        yield _decoded(frames, start, header, payload=True)
        start += header.frame_length


def _decoded(frames: bytes, start: int, header: Header, payload: bool) -> Record:
    """Decode the frame that begins at ``start`` with ``header``."""
    meta_start = start + HEADER_BYTES
    payload_start = meta_start + header.meta_length
    meta = frames[meta_start:payload_start]
    meta = verified(meta, header.meta_length, header.meta_crc, "meta")
    if not payload:
        return to_record(header, meta, b"")
    rest = frames[payload_start : payload_start + header.payload_length]
    rest = verified(rest, header.payload_length, header.payload_crc, "payload")
    return to_record(header, meta, rest)


def decode_header(raw: bytes) -> Header:
    """Decode and verify a header.

    Raises BadFrame when the header is truncated or damaged, NewerVersion when its version is not
    VERSION.
    """
    if len(raw) < HEADER_BYTES:
        raise BadFrame(f"the header is truncated after {len(raw)} of {HEADER_BYTES} bytes")
    magic, crc = _START.unpack_from(raw)
    if magic != MAGIC:
        raise BadFrame("no record starts here")
    if crc32c(raw[_START.size :]) != crc:
        raise BadFrame("the header's checksum is wrong")
    header = Header._make(_REST.unpack_from(raw, _START.size))
    if header.version != VERSION:
        raise NewerVersion(f"record format version {header.version} is not {VERSION}")
    return header


def verified(part: bytes, length: int, crc: int, name: str) -> bytes:
    """Return ``part`` if it has the length and the checksum that the header states. Raises
    BadFrame."""
    if len(part) < length:
        raise BadFrame(f"the {name} is truncated after {len(part)} of {length} bytes")
    if length and crc32c(part) != crc:
        raise BadFrame(f"the {name}'s checksum is wrong")
    return part


def to_record(header: Header, meta: bytes, payload: bytes) -> Record:
    """Make a record from its verified parts. Raises BadFrame if this engine cannot read the
    meta."""
    try:
        body = _read(header.kind, json.loads(meta))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadFrame(f"the meta of kind {header.kind} cannot be read ({error})") from error
    return Record(header.position, header.committed, body, payload)


# -- bodies: written by hand, since dataclasses.asdict and json.dumps take ten times as long -------


def _written(body: Body) -> tuple[RecordKind, str]:
    match body:
        case Events():
            return RecordKind.EVENTS, _written_events(body)
        case Mark():
            return RecordKind.MARK, _written_mark(body)
        case Published(query, sink, batch):
            text = f'{{"query":{_quoted(query)},"sink":{_quoted(sink)},"batch":{batch}}}'
            return RecordKind.PUBLISHED, text
        case EpochStart(node, process, forced):
            text = f'"node":{_quoted(node)},"process":{_quoted(process)}'
            return RecordKind.EPOCH, f'{{{text},"forced":{_flag(forced)}}}'
        case Application(digest, queries):
            text = _joined([_written_version(version) for version in queries])
            return RecordKind.APPLICATION, f'{{"digest":{_quoted(digest)},"queries":[{text}]}}'
        case Skip(query, number, by, reason):
            text = f'"skip":{_quoted(query)},"number":{number},"by":{_quoted(by)}'
            return RecordKind.APPLICATION, f'{{{text},"reason":{_quoted(reason)}}}'
        case Deployed():
            # An engine that knows no shadows must not take the record for one without.
            meta = {_WITH_SHADOWS if body.has_shadows else _DEPLOYED: True, **body.tree}
            return RecordKind.APPLICATION, json.dumps(meta, separators=(",", ":"))


def _written_events(body: Events) -> str:
    text = f'"stream":{_quoted(body.stream)},"rows":{body.rows}'
    text += f',"received_at_us":{body.received_at_us}'
    if body.submissions:
        submissions = _joined(
            [
                f"[{_quoted(one.producer)},{one.sequence},{_quoted(one.digest)},{one.rows}]"
                for one in body.submissions
            ]
        )
        text += f',"submissions":[{submissions}]'
    if body.pulled:
        pulled = _joined(
            [
                f"[{_quoted(one.source)},{_quoted(one.offset)},{one.rows},{one.rejected}]"
                for one in body.pulled
            ]
        )
        text += f',"pulled":[{pulled}]'
    return f"{{{text}}}"


def _written_mark(body: Mark) -> str:
    return f'{{"query":{_quoted(body.query)},"number":{body.number},"through":{body.through}}}'


def _written_version(version: QueryVersion) -> str:
    text = f'"query":{_quoted(version.query)},"digest":{_quoted(version.digest)}'
    text += f',"first":{_written_mark(version.first)},"reset":{_flag(version.reset)}'
    if version.partitions is not None:
        text += f',"partitions":{version.partitions}'
    if version.promoted is not None:
        text += f',"promoted":{version.promoted}'
    return f"{{{text}}}"


def _joined(parts: Sequence[str]) -> str:
    return ",".join(parts)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _read(kind: int, meta: Any) -> Body:
    match kind:
        case RecordKind.EVENTS:
            return _read_events(meta)
        case RecordKind.MARK:
            return _read_mark(meta)
        case RecordKind.PUBLISHED:
            return Published(meta["query"], meta["sink"], meta["batch"])
        case RecordKind.EPOCH:
            return EpochStart(meta["node"], meta["process"], meta["forced"])
        case RecordKind.APPLICATION if "skip" in meta:
            return Skip(meta["skip"], meta["number"], meta["by"], meta["reason"])
        case RecordKind.APPLICATION if _DEPLOYED in meta or _WITH_SHADOWS in meta:
            return Deployed.from_tree(meta)
        case RecordKind.APPLICATION:
            return Application(meta["digest"], tuple(map(_read_version, meta["queries"])))
        case _:
            raise ValueError("unknown kind")


def _read_events(meta: Any) -> Events:
    submissions, pulled = meta.get("submissions"), meta.get("pulled")
    return Events(
        meta["stream"],
        meta["rows"],
        meta["received_at_us"],
        tuple([Submission(*one) for one in submissions]) if submissions else (),
        tuple([Pulled(*one) for one in pulled]) if pulled else (),
    )


def _read_mark(meta: Any) -> Mark:
    return Mark(meta["query"], meta["number"], meta["through"])


def _read_version(meta: Any) -> QueryVersion:
    return QueryVersion(
        meta["query"],
        meta["digest"],
        _read_mark(meta["first"]),
        meta["reset"],
        meta.get("partitions"),
        meta.get("promoted"),
    )
