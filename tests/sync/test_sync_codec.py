"""The encoding of messages as frames, and the refusal of malformed frames."""

from __future__ import annotations

import contextlib
from typing import get_args

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

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
from ha_engine.journal.record import _REST, _START, MAGIC, encode
from ha_engine.plugins import OFFSET_BYTES_MAX
from ha_engine.receive.group import REQUEST_BYTES_MAX, SUBMISSIONS_MAX
from ha_engine.receive.offsets import Pull
from ha_engine.sync.codec import MalformedFrame, records_frame, to_message, to_sync_frame
from ha_engine.sync.hello import from_sync_frame
from ha_engine.sync.hello import to_sync_frame as hello_frame
from ha_engine.sync.wire import MESSAGE_BYTES_MAX
from ha_engine.types import (
    ORIGIN,
    Application,
    EpochStart,
    Events,
    Mark,
    Position,
    Published,
    QueryVersion,
    Record,
    Skip,
    SnapshotPlace,
    Submission,
)
from ha_engine.v1 import sync_pb2 as pb
from tests.journal.samples import events, some_records
from tests.sync.pair import hello

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
places = st.builds(Position, numbers, numbers)
marks = st.builds(Mark, texts, numbers, numbers)
bodies = st.one_of(
    st.builds(
        Events,
        texts,
        numbers,
        numbers,
        st.lists(st.builds(Submission, texts, numbers, texts, numbers), max_size=3).map(tuple),
    ),
    marks,
    st.builds(Published, texts, texts, numbers),
    st.builds(EpochStart, texts, texts, st.booleans()),
    st.builds(
        Application,
        texts,
        st.lists(st.builds(QueryVersion, texts, texts, marks, st.booleans()), max_size=2).map(
            tuple
        ),
    ),
    st.builds(Skip, texts, numbers, texts, texts),
)


@st.composite
def record_messages(draw: st.DrawFn) -> Records:
    """Records in the order of a journal: sequences without a gap, epochs that never fall."""
    previous = Position(draw(st.integers(0, 9)), draw(st.integers(0, 2**62)))
    records, epoch = [], previous.epoch
    for n, body in enumerate(draw(st.lists(bodies, max_size=5)), 1):
        epoch += draw(st.integers(0, 1))
        position = Position(epoch, previous.sequence + n)
        records.append(Record(position, draw(numbers), body, draw(st.binary(max_size=100))))
    return Records(draw(numbers), previous, tuple(records), draw(numbers))


messages = st.one_of(
    st.builds(Probe, numbers),
    st.builds(ProbeReply, numbers, texts, places, numbers, st.lists(places).map(tuple)),
    st.builds(
        Follow,
        numbers,
        texts,
        places,
        places,
        st.booleans(),
        places,
        st.lists(places, max_size=3).map(tuple),
    ),
    record_messages(),
    st.builds(Committed, numbers, numbers),
    st.builds(Heartbeat, numbers, numbers, numbers, numbers),
    st.builds(
        Ack,
        numbers,
        texts,
        numbers,
        st.booleans(),
        st.booleans(),
        st.lists(st.tuples(texts, numbers), max_size=3).map(tuple),
    ),
    st.builds(Promise, numbers, numbers),
    st.builds(Released, numbers),
    st.builds(BatchDigest, numbers, texts, numbers, texts),
    st.builds(
        TakeSnapshot,
        numbers,
        st.builds(
            SnapshotPlace,
            numbers,
            places,
            st.lists(st.tuples(texts, numbers), max_size=3).map(tuple),
            places,
        ),
    ),
    st.builds(
        SnapshotTaken,
        numbers,
        numbers,
        numbers,
        st.lists(st.tuples(texts, numbers, texts), max_size=3).map(tuple),
    ),
    st.builds(SnapshotFailed, numbers, numbers, texts),
    st.builds(SnapshotLacking, numbers, texts),
)


def passed(frame: pb.SyncFrame) -> pb.SyncFrame:
    return pb.SyncFrame.FromString(frame.SerializeToString())


@settings(max_examples=400)
@given(messages)
def test_every_message_survives_a_round_trip(message: Message) -> None:
    assert to_message(passed(to_sync_frame(message))) == message


@pytest.mark.parametrize("kind", get_args(Message))
def test_round_trip_test_covers_every_kind_of_message(kind: type) -> None:
    found: list[Message] = []

    @settings(max_examples=600, database=None)
    @given(messages)
    def collect(message: Message) -> None:
        found.append(message)

    collect()
    assert any(isinstance(message, kind) for message in found)


@given(st.binary(max_size=300))
def test_malformed_bytes_raise_the_one_codec_error(noise: bytes) -> None:
    frame = pb.SyncFrame()
    try:
        frame.MergeFromString(noise)
    except Exception:
        return  # gRPC ends the stream before this code sees it
    with contextlib.suppress(MalformedFrame):
        assert to_message(frame) is not None


@given(record_messages(), st.data())
def test_changed_byte_of_a_record_is_detected(message: Records, data: st.DataObject) -> None:
    frames = b"".join(map(encode, message.records))
    if not frames:
        return
    place = data.draw(st.integers(0, len(frames) - 1))
    flipped = frames[:place] + bytes([frames[place] ^ 0x10]) + frames[place + 1 :]
    with pytest.raises(MalformedFrame, match="a damaged record"):
        to_message(records_frame(1, message.previous, flipped, 0))


@given(st.data())
def test_truncated_record_is_detected(data: st.DataObject) -> None:
    frames = b"".join(map(encode, some_records(3)))
    ends = {len(b"".join(map(encode, some_records(n)))) for n in range(4)}
    cut = data.draw(st.integers(0, len(frames)).filter(lambda place: place not in ends))
    with pytest.raises(MalformedFrame, match="a damaged record"):
        to_message(records_frame(1, ORIGIN, frames[:cut], 0))


@pytest.mark.parametrize(
    ("previous", "record"),
    [
        (Position(1, 4), events(6)),
        (Position(1, 5), events(5)),
        (Position(2, 4), events(5, epoch=1)),
    ],
)
def test_record_that_does_not_follow_its_predecessor_is_refused(
    previous: Position, record: Record
) -> None:
    with pytest.raises(MalformedFrame, match="directly after"):
        to_message(records_frame(1, previous, encode(record), 0))


def crafted(meta: bytes, kind: int = 2) -> bytes:
    """Return a frame with correct checksums around any meta."""
    rest = _REST.pack(1, kind, len(meta), 0, crc32c(meta), 0, 1, 1, 0)
    return _START.pack(MAGIC, crc32c(rest)) + rest + meta


@pytest.mark.parametrize(
    "meta",
    [
        b'{"query":"q","number":"1","through":0}',
        b'{"query":1,"number":1,"through":0}',
        b'{"query":"q","number":1,"through":0,"new":1}',
        b'{"number":1,"query":"q","through":0}',
        b'{"query": "q", "number": 1, "through": 0}',
        b"[]",
        b"{",
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_record_in_a_form_that_this_engine_does_not_write_is_refused(meta: bytes) -> None:
    """Both journals must hold the same bytes, and the core needs values of the right types."""
    with pytest.raises(MalformedFrame):
        to_message(records_frame(1, ORIGIN, crafted(meta), 0))


def test_hello_and_welcome_frames_do_not_decode_as_messages() -> None:
    with pytest.raises(MalformedFrame, match="the peer sent welcome instead of a message"):
        to_message(pb.SyncFrame(welcome=pb.Welcome()))
    with pytest.raises(MalformedFrame, match="an unknown frame"):
        to_message(pb.SyncFrame())


def test_hello_survives_a_round_trip() -> None:
    said = hello("node-a", group_id="g", protocol_max=3)
    assert from_sync_frame(passed(hello_frame(said)).hello) == said


@pytest.mark.parametrize(
    "other", [{"node": "n" * 301}, {"runtime": {"python": "x" * 301}}, {"address": "a" * 10**6}]
)
def test_hello_above_the_size_limit_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame, match="too long"):
        from_sync_frame(hello_frame(hello(**{"node": "node-a", **other})).hello)


def test_largest_record_of_the_gate_fits_into_a_message() -> None:
    submission = Submission("p" * 128, 2**63 - 1, "d" * 32, 20_000)
    body = Events("s" * 63, 20_000, 2**62, (submission,) * SUBMISSIONS_MAX)
    meta = len(encode(Record(Position(2**62, 2**62), 2**62, body)))
    # A request that is alone in its record may also have an offset.
    meta += Pull("drop", None, "o" * OFFSET_BYTES_MAX).size
    # Arrow's own framing of a batch: buffers are padded, and each column has a line of metadata.
    assert meta + REQUEST_BYTES_MAX + (4 << 20) < MESSAGE_BYTES_MAX
