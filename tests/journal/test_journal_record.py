"""Frames of records survive a round trip; a changed frame is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.journal.record import (
    HEADER_BYTES,
    BadFrame,
    NewerVersion,
    crc32c,
    decode,
    decode_all,
    encode,
)
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
    Shadow,
    Skip,
    Submission,
)
from tests.journal.samples import events

numbers = st.integers(0, 2**63)
marks = st.builds(Mark, st.text(), numbers, numbers)
numbers_of_partitions = st.none() | st.integers(1, 99)
versions = st.builds(
    QueryVersion,
    st.text(),
    st.text(),
    marks,
    st.booleans(),
    numbers_of_partitions,
    st.none() | numbers,
)
shadows = st.none() | st.builds(Shadow, st.text(), numbers, marks, st.text(), st.text())
submissions = st.builds(Submission, st.text(), numbers, st.text(), numbers)
pulled = st.builds(Pulled, st.text(), st.text(), numbers, numbers)
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(
        Events,
        st.text(),
        numbers,
        numbers,
        st.lists(submissions, max_size=4).map(tuple),
        st.lists(pulled, max_size=4).map(tuple),
    ),
    marks,
    st.builds(Published, st.text(), st.text(), numbers),
    st.builds(EpochStart, st.text(), st.text(), st.booleans()),
    st.builds(Application, st.text(), st.lists(versions, max_size=3).map(tuple)),
    st.builds(Skip, st.text(), numbers, st.text(), st.text()),
    st.builds(
        Deployed,
        numbers,
        st.text(),
        st.text(),
        st.text(),
        numbers,
        st.text(),
        st.none() | st.text(),
        shadows,
        shadows,
    ),
)
positions = st.builds(Position, numbers, numbers)
records = st.builds(Record, positions, numbers, bodies, st.binary(max_size=200))


@given(records)
def test_every_record_survives_a_round_trip(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.lists(records, max_size=5), st.data())
def test_frames_decode_one_after_the_other_and_a_cut_is_refused(
    some: list[Record], data: st.DataObject
) -> None:
    frames = [encode(record) for record in some]
    whole = b"".join(frames)
    assert list(decode_all(whole)) == some
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    cut = data.draw(st.integers(0, len(whole)))
    if cut not in ends:
        with pytest.raises(BadFrame):
            list(decode_all(whole[:cut]))


@given(records)
def test_record_read_without_its_payload_is_otherwise_equal(record: Record) -> None:
    without = Record(record.position, record.committed, record.body)
    assert decode(encode(record), payload=False) == without


@given(records, st.data())
def test_a_frame_with_any_bit_flipped_is_refused(record: Record, data: st.DataObject) -> None:
    frame = bytearray(encode(record))
    place = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[place // 8] ^= 1 << place % 8
    with pytest.raises(BadFrame):
        decode(bytes(frame))


@given(records, st.data())
def test_a_frame_cut_anywhere_is_refused(record: Record, data: st.DataObject) -> None:
    frame = encode(record)
    with pytest.raises(BadFrame):
        decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


def test_engine_without_shadows_refuses_a_record_with_one() -> None:
    """It would run the live application alone, and take a promotion for a usual deployment."""
    plain = Deployed(1, "id", "name", "alice", 0, "")
    shadow = Shadow("delays", 2, Mark("delays", 7, 20), "new")
    for body, has in ((plain, False), (replace(plain, shadow=shadow), True)):
        frame = encode(Record(Position(1, 1), 0, body))
        assert (b'"deployed":true' in frame, b'"shadow"' in frame) == (not has, has)


def test_intact_frame_of_a_later_version_is_not_reported_as_damage() -> None:
    frame = bytearray(encode(events(1)))
    frame[8] += 1
    frame[4:8] = crc32c(bytes(frame[8:HEADER_BYTES])).to_bytes(4, "little")
    with pytest.raises(NewerVersion, match="version 2"):
        decode(bytes(frame))


def test_reading_a_journal_imports_no_heavy_module() -> None:
    heavy = {"asyncio", "sqlalchemy", "pydantic", "pyarrow", "grpc", "typer", "rich"}
    script = "import sys, ha_engine.journal; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert heavy & set(loaded) == set()
