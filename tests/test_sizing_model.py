"""The formulae of the sizing model give the bytes of records that the engine writes."""

from __future__ import annotations

import pytest

from benchmarks.sizing import (
    EPOCH_DIGITS,
    NUMBER_DIGITS,
    OFFSET_DIGITS,
    Deployment,
    figures,
    log_record_bytes,
    mark_bytes,
    offset_bytes,
    partitions_max,
    published_bytes,
)
from ha_engine.connectors.kafka.offsets import Positions
from ha_engine.errors import SourceRefused
from ha_engine.journal.record import encode
from ha_engine.types import LOG, Body, Events, Mark, Position, Published, Pulled, Record

NUMBER, OFFSET, EPOCH = (10**digits - 1 for digits in (NUMBER_DIGITS, OFFSET_DIGITS, EPOCH_DIGITS))
NAME = "departures"
WITHIN = 0.1


def offset(partitions: int) -> str:
    identity = ("topic_id", "q0Zc3yq4Q8eVYb5s2kNn1w")
    return Positions(NAME, identity, [OFFSET] * partitions, [EPOCH] * partitions).text


def encoded(body: Body) -> int:
    return len(encode(Record(Position(9, NUMBER), NUMBER, body)))


@pytest.mark.parametrize("partitions", [24, 1_000, 4_000])
def test_record_of_a_log_has_the_bytes_of_the_model(partitions: int) -> None:
    text = offset(partitions)
    assert len(text) == pytest.approx(offset_bytes(partitions), rel=WITHIN)
    events = Events(NAME, 200_000, 1_795_795_546_000_000, pulled=(Pulled(LOG, text, 200_000),))
    assert encoded(events) == pytest.approx(log_record_bytes(partitions), rel=WITHIN)


def test_marks_and_published_records_have_the_bytes_of_the_model() -> None:
    assert encoded(Mark(NAME, NUMBER, NUMBER)) == pytest.approx(mark_bytes(), rel=WITHIN)
    published = encoded(Published(NAME, NAME, NUMBER))
    assert published == pytest.approx(published_bytes(), rel=WITHIN)


def test_offset_of_more_partitions_than_the_model_allows_is_refused() -> None:
    assert offset(partitions_max())
    with pytest.raises(SourceRefused, match="fewer partitions"):
        offset(partitions_max() + 10)


def test_ten_million_events_and_ten_thousand_partitions_fit() -> None:
    most = Deployment(events_per_second=10e6, topics=10, partitions=1_000)
    found = {name: value for name, _, value in figures(most)}
    assert most.partitions <= partitions_max()
    assert found["records of a log"] <= 32 << 10
    assert found["journal, on each node"] < 1_000
    assert found["offsets in the memory of a node"] < 200
