"""Workers on other hosts read each record of a range once, whatever happens to the nodes."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha_engine.config.execution import ExecutionTls
from ha_engine.errors import (
    CheckpointTooOld,
    QueryProcessFailed,
    RangeRefused,
    RangeUnavailable,
)
from ha_engine.journal import Journal, read_extent
from ha_engine.journal.record import encode
from ha_engine.query import range_reader
from ha_engine.query.range_endpoints import Endpoints
from ha_engine.query.range_reader import read_range
from ha_engine.types import Record
from ha_engine.v1 import ranges_pb2 as pb
from ha_engine.v1 import ranges_pb2_grpc as rpc
from tests.journal.samples import flip, mark
from tests.programs import needs
from tests.query.range_nodes import GROUP, Known, Loop, RangeNode, endpoints, event
from tests.sync.authority import Authority
from tests.waiting import wait_until, watch

BRIEF = 0.3
"""Patience of a reader that no node will serve, in seconds."""
STREAMS = ("flights", "weather", "airports")
Start = Callable[..., RangeNode]


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


@pytest.fixture
def start(loop: Loop, tmp_path: Path) -> Iterator[Start]:
    """Start a node with its own journal, from the arguments of RangeNode."""
    nodes: list[RangeNode] = []

    def one(*arguments: Any, **settings: Any) -> RangeNode:
        nodes.append(RangeNode(loop, tmp_path / f"node-{len(nodes)}", *arguments, **settings))
        return nodes[-1]

    yield one
    for node in nodes:
        node.close()


def some_records(count: int, size: int = 100) -> list[Record]:
    """Return records of which every third is a mark and every second of the others of flights."""
    return [
        event(n, size=size, stream=STREAMS[n % 2]) if n % 3 else mark(n)
        for n in range(1, count + 1)
    ]


def of_flights(records: list[Record]) -> list[Record]:
    return [record for record in records if getattr(record.body, "stream", None) == "flights"]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


# -- every record once -----------------------------------------------------------------------------

kinds = st.one_of(st.none(), st.tuples(st.sampled_from(STREAMS), st.integers(0, 3000)))


@pytest.fixture(scope="module")
def node(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeNode]:
    node = RangeNode(loop, tmp_path_factory.mktemp("node") / "journal", message_bytes=4 << 10)
    with closing(node):
        yield node


@settings(max_examples=25)
@given(drawn=st.lists(kinds, min_size=1, max_size=60), data=st.data())
def test_a_range_is_what_the_files_have_of_its_stream(
    node: RangeNode, drawn: list[tuple[str, int] | None], data: st.DataObject
) -> None:
    records = [
        mark(n) if kind is None else event(n, stream=kind[0], size=kind[1])
        for n, kind in enumerate(drawn, 1)
    ]
    first = data.draw(st.integers(1, len(records)))
    last = data.draw(st.integers(first, len(records)))
    stream = data.draw(st.sampled_from(STREAMS))
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.open(Path(directory), group="test", segment_size=8 << 10)
        with closing(journal):
            journal.append(records)
            node.known.journal, node.known.through = journal, len(records)
            expected = [
                record
                for extent in journal.locate(first, last)
                for record in read_extent(extent, stream=stream)
            ]
            assert list(read_range(endpoints(node), stream, first, last)) == expected


def test_a_frame_larger_than_grpc_permits_by_default_arrives(start: Start) -> None:
    records = [event(1), event(2, size=6 << 20), event(3)]
    assert list(read_range(endpoints(start(records)), "flights", 1, 3)) == records


def test_a_long_part_without_records_of_the_stream_is_passed_in_steps(start: Start) -> None:
    records = [event(n, stream="weather") for n in range(1, 2000)] + [event(2000)]
    node = start(records, message_bytes=1 << 10)
    assert list(read_range(endpoints(node), "flights", 1, 2000)) == records[-1:]
    assert node.files.reads > 10


def test_an_empty_range_needs_no_node() -> None:
    assert list(read_range(endpoints("127.0.0.1:1"), "flights", 5, 4)) == []


def test_a_slow_reader_does_not_make_the_node_read_the_whole_range(start: Start) -> None:
    records = [event(n, size=256 << 10) for n in range(1, 97)]
    node = start(records, segment_size=64 << 20)
    reading = read_range(endpoints(node), "flights", 1, 96)
    assert next(reading) == records[0]
    watch(lambda: require(node.files.reads <= 6), seconds=0.3)
    assert list(reading) == records[1:]
    assert node.files.reads > 24


def require(true: bool) -> None:
    assert true


def test_a_reader_that_leaves_frees_its_place(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    records = [event(n, size=256 << 10) for n in range(1, 65)]
    node = start(records, calls_max=1)
    reading = read_range(endpoints(node), "flights", 1, 64)
    assert next(reading) == records[0]
    with pytest.raises(RangeUnavailable, match="RESOURCE_EXHAUSTED, this node serves 1 readers"):
        list(read_range(endpoints(node), "flights", 1, 2, patience_seconds=BRIEF))
    reading.close()  # type: ignore[attr-defined]
    assert list(read_range(endpoints(node), "flights", 1, 2)) == records[:2]
    node.stop()
    assert caplog.messages == []


# -- nodes that are away ---------------------------------------------------------------------------


def test_a_restarted_node_continues_without_gap_or_repeat(start: Start) -> None:
    records = some_records(300, size=50 << 10)
    node = start(records, message_bytes=100 << 10)
    reading = read_range(endpoints(node), "flights", 1, 300)
    got = list(islice(reading, 10))
    assert node.files.reads < 75, "more than half of the messages are on their way"
    node.stop()
    node.start()
    assert got + list(reading) == of_flights(records)


def test_the_other_node_takes_over_in_the_middle(start: Start) -> None:
    records = some_records(300, size=50 << 10)
    own = start(records, message_bytes=100 << 10)
    other = start(records, segment_size=300 << 10)
    reading = read_range(endpoints(own, other), "flights", 1, 300)
    got = list(islice(reading, 10))
    assert other.files.reads == 0
    own.stop()
    assert got + list(reading) == of_flights(records)
    assert other.files.reads > 0


def test_a_node_that_hangs_is_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "CALL_SECONDS", BRIEF)
    records = some_records(30)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        asked = endpoints(address, start(records))
        assert list(read_range(asked, "flights", 1, 30)) == of_flights(records)


def test_a_caller_may_take_longer_for_a_record_than_a_call_lasts(start: Start) -> None:
    records = some_records(300, size=50 << 10)
    node = start(records, message_bytes=100 << 10)
    reading = read_range(endpoints(node), "flights", 1, 300, patience_seconds=BRIEF)
    got = [next(reading)]
    wait_until(lambda: node.service.calls == 0)
    assert got + list(islice(reading, 5)) == of_flights(records)[:6]
    reading.close()  # type: ignore[attr-defined]


def test_records_that_a_forced_failover_gave_up_are_never_read(start: Start) -> None:
    shared = some_records(20)
    lost = start([*shared, *(event(n) for n in range(21, 31))])
    records = [*shared, *(event(n, epoch=2) for n in range(21, 31))]
    kept = start(records)
    for nodes in [(kept, lost), (lost, kept)]:
        asked = endpoints(*nodes, last_epoch=2)
        assert list(read_range(asked, "flights", 1, 30)) == of_flights(records)
    with pytest.raises(RangeUnavailable, match=r"journal has no record 2\.30"):
        list(read_range(endpoints(lost, last_epoch=2), "flights", 1, 30, patience_seconds=BRIEF))
    assert list(read_range(endpoints(lost, kept), "flights", 1, 20)) == of_flights(shared)


def test_a_range_that_the_node_does_not_have_yet_is_awaited(start: Start) -> None:
    records = some_records(30)
    node = start(records)
    node.known.through = 20
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(lambda: list(read_range(endpoints(node), "flights", 1, 30)))
        wait_until(lambda: node.known.questions >= 3)
        assert not reading.done()
        node.known.through = 30
        assert reading.result(60) == of_flights(records)


def test_no_node_for_some_time_is_an_error_that_says_what_to_check() -> None:
    away = endpoints(free_address(), free_address())
    with pytest.raises(RangeUnavailable) as raised:
        list(read_range(away, "flights", 3, 9, patience_seconds=BRIEF))
    assert "records 3 to 9 of stream flights for 0.3 s; check that the nodes run" in str(
        raised.value
    )
    assert "execution.listen" in str(raised.value)
    assert all(f"{address}: UNAVAILABLE" in str(raised.value) for address in away.addresses)


# -- records that are gone -------------------------------------------------------------------------


def test_records_that_one_node_trimmed_come_from_the_other(start: Start) -> None:
    records = some_records(300)
    own, other = start(records, segment_size=4 << 10), start(records)
    own.journal.trim_before(200)
    assert own.journal.first > 1
    assert list(read_range(endpoints(own, other), "flights", 1, 300)) == of_flights(records)
    with pytest.raises(CheckpointTooOld, match="has trimmed the records 1 to 300"):
        list(read_range(endpoints(own), "flights", 1, 300))
    asked = endpoints(own, free_address())
    with pytest.raises(CheckpointTooOld, match="UNAVAILABLE"):
        list(read_range(asked, "flights", 1, 300, patience_seconds=BRIEF))


def test_a_trim_in_mid_read_is_an_error_and_no_gap(start: Start) -> None:
    records = [event(n, size=4 << 10) for n in range(1, 2001)]
    node = start(records, segment_size=64 << 10, message_bytes=16 << 10)
    reading = read_range(endpoints(node), "flights", 1, 2000)
    got = [next(reading)]
    node.journal.trim_before(1990)
    with pytest.raises(CheckpointTooOld):
        got.extend(reading)
    assert got == records[: len(got)]
    assert len(got) < 1900


def test_a_truncation_in_mid_read_is_an_error_and_no_gap(start: Start) -> None:
    records = [event(n, size=4 << 10) for n in range(1, 2001)]
    node = start(records, segment_size=64 << 20, message_bytes=16 << 10)
    reading = read_range(endpoints(node), "flights", 1, 2000, patience_seconds=BRIEF)
    got = [next(reading)]
    node.journal.truncate_after(1500)
    with pytest.raises(QueryProcessFailed):
        got.extend(reading)
    assert got == records[: len(got)]
    assert len(got) <= 1500


def test_damage_names_file_and_offset_and_the_other_node_continues(start: Start) -> None:
    records = some_records(300)
    own, other = start(records), start(records)
    (extent,) = own.journal.locate(200, 200)
    flip(Path(extent.path), extent.offset + extent.length - 1)
    with pytest.raises(RangeRefused) as raised:
        list(read_range(endpoints(own), "flights", 1, 300))
    assert f"DATA_LOSS, {extent.path} is damaged at byte {extent.offset}: " in str(raised.value)
    assert list(read_range(endpoints(own, other), "flights", 1, 300)) == of_flights(records)


# -- refusals --------------------------------------------------------------------------------------


def test_a_wrong_token_or_group_is_refused_by_the_own_node_at_once(start: Start) -> None:
    records = some_records(30)
    own, other = start(records), start(records)
    with pytest.raises(RangeRefused, match=r"UNAUTHENTICATED, .* the same secret"):
        list(read_range(endpoints(own, free_address(), token="wrong"), "flights", 1, 30))
    assert own.known.questions == 0
    own.known.group_id = "another"
    with pytest.raises(RangeRefused, match="belongs to the group another, not 1111"):
        list(read_range(endpoints(own, other), "flights", 1, 30))
    assert list(read_range(endpoints(other, own), "flights", 1, 30)) == of_flights(records)


@needs("openssl")
def test_certificates_are_checked_against_the_given_authority(start: Start, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    files = authority.files("node-a", san="IP:127.0.0.1")
    tls = ExecutionTls(
        certificate=Path(files["certificate"]), key=Path(files["key"]), ca=authority.certificate
    )
    records = some_records(30)
    node = start(records, tls=tls)
    trusting = endpoints(node, ca=authority.certificate.read_bytes())
    assert list(read_range(trusting, "flights", 1, 30)) == of_flights(records)
    wary = endpoints(node, ca=stranger.certificate.read_bytes())
    with pytest.raises(RangeUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        list(read_range(wary, "flights", 1, 30, patience_seconds=BRIEF))


class Misbehaved(rpc.RangesServicer):
    """Answers every call with ``answer``."""

    def __init__(self, *answer: pb.Frames) -> None:
        self.answer = answer

    def Read(  # noqa: N802
        self, request: pb.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Frames]:
        yield from self.answer


@contextmanager
def serving(servicer: rpc.RangesServicer) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_RangesServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def frames(through: int, *records: Record) -> pb.Frames:
    return pb.Frames(frames=b"".join(map(encode, records)), through=through)


BAD = {
    "it ends before record 9": [],
    "record 1.5 comes after record 5": [frames(9, event(5), event(5))],
    "record 1.6 comes after record 7": [frames(9, event(7), event(6))],
    "record 1.4 comes after record 4": [frames(9, event(4))],
    "it claims to end at record 10": [frames(10, event(10))],
    "it claims to end at record 5": [frames(5, event(6))],
    "it claims to end at record 4": [frames(4)],
    "record 1.6 is not of stream flights": [frames(9, event(6, stream="weather"))],
    "the header is truncated": [pb.Frames(frames=encode(event(5)) + b"rest", through=9)],
}


@pytest.mark.parametrize(("reason", "answer"), BAD.items(), ids=BAD)
def test_an_answer_with_a_gap_a_repeat_or_other_records_is_refused(
    reason: str, answer: list[pb.Frames]
) -> None:
    with serving(Misbehaved(*answer)) as address:
        # A busy host may take longer to connect than the reader waits.
        wait_until(lambda: reason in refusal(address))


def refusal(address: str) -> str:
    with pytest.raises(RangeUnavailable) as refused:
        list(read_range(endpoints(address), "flights", 5, 9, patience_seconds=BRIEF))
    return str(refused.value)


# -- the worker ------------------------------------------------------------------------------------


def test_endpoints_are_sent_to_workers_and_never_show_the_token() -> None:
    asked = Endpoints(("a:1", "b:1"), "very secret", b"pem", GROUP, 1)
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert "secret" not in repr(asked)


WORKERS = """
import json, os, sys
from ha_engine.query import range_reader
from ha_engine.query.range_endpoints import Endpoints

told = json.loads(sys.argv[1])
asked = Endpoints((told["address"],), told["token"], None, told["group"], 1)
children = []
for _ in range(2):
    if (child := os.fork()) == 0:
        for _ in range(2):
            got = [r.position.sequence for r in range_reader.read_range(asked, "flights", 1, 30)]
            assert got == told["expected"], got
        assert range_reader._channel.cache_info().misses == 1
        heavy = {"pyarrow", "pyspark", "pandas", "numpy", "pydantic", "sqlalchemy", "structlog"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(any(codes))
"""


def test_forked_workers_read_over_one_channel_each_and_import_little(start: Start) -> None:
    records = some_records(30)
    told = {
        "address": start(records).listen,
        "token": endpoints().token,
        "group": GROUP,
        "expected": [record.position.sequence for record in of_flights(records)],
    }
    command = [sys.executable, "-c", WORKERS, json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_node_without_its_group_is_away_until_it_knows_the_group(start: Start) -> None:
    node = start(some_records(3))
    node.known = Known(node.journal, 3, group_id=None)
    node.stop()
    node.start()
    with pytest.raises(RangeUnavailable, match="does not know its group yet"):
        list(read_range(endpoints(node), "flights", 1, 3, patience_seconds=BRIEF))
