"""The node's side of the local socket, over real gRPC and a real outbox."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from ha_engine import __version__
from ha_engine.buckets.place import BucketPlace, Plugin, Table
from ha_engine.core import actions as do
from ha_engine.core import inputs as on
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.node.local_service import LocalServer, LocalService, PreparedSink
from ha_engine.outbox import Outbox
from ha_engine.outbox.batch_file import digest_of_file, write_batch_file
from ha_engine.query.bucket_writer import BucketWriter
from ha_engine.query.link import Address, NodeLink
from ha_engine.system.files import OsFiles
from ha_engine.types import Extent, Mark
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1.local_pb2_grpc import LocalStub
from tests.publish.plugin_sinks import plugin_sink
from tests.waiting import async_wait_until

ROWS = pa.table({"n": [1, 2, 3]})


@dataclass
class Recorder:
    """A stand-in for the driver, which accepts every report about the query process."""

    believed: str | None = None
    changed_after: int = 0
    trimmed_through: int = 0
    orphans: int = 0
    log_error: Exception | None = None
    ends: str | None = None
    over: str | None = None
    told: list[on.Input] = field(default_factory=list)
    executors: list[pb.ReportExecutorsRequest] = field(default_factory=list)
    claimed_again: list[str] = field(default_factory=list)

    def handle(self, event: on.Input) -> None:
        self.told.append(event)

    def fail(self, error: BaseException) -> None:
        raise error

    def incarnation(self) -> str | None:
        return self.believed

    def skipped(self, query: str, number: int) -> bool:
        return False

    def may_admit(self, query: str, lineage: str) -> bool:
        return lineage != self.over

    def may_be_of_other_code(self, query: str, number: int) -> bool:
        return number <= self.changed_after

    def lacks_mark_after(self, query: str, number: int) -> bool:
        return number < self.trimmed_through

    def lacks_records_from(self, first: int) -> bool:
        return first <= self.trimmed_through

    def locate(self, first: int, last: int) -> list[Extent]:
        return []

    def progressed(self, query: str, progress: pb.QueryProgress) -> None:
        pass

    def saw_executors(self, report: pb.ReportExecutorsRequest) -> None:
        self.executors.append(report)

    def orphaned(self) -> None:
        self.orphans += 1

    def check_logs(self, query: str) -> None:
        if self.log_error is not None:
            raise self.log_error

    def log_ends(self, stream: str, sequence: int) -> str | None:
        return self.ends


@dataclass
class Local:
    """A served socket, a client of it, and the results of the calls."""

    recorder: Recorder
    outbox: Outbox
    directory: Path
    service: LocalService
    stub: LocalStub

    def pending(self, number: int) -> pb.AdmitBatchRequest:
        return pending(self.directory, number)

    def admitted(self) -> list[int]:
        return [event.number for event in self.recorder.told if isinstance(event, on.BatchAdmitted)]


def pending(outbox: Path, number: int) -> pb.AdmitBatchRequest:
    """Write a batch as the query process does, and return its request."""
    path = outbox / "q" / "pending" / f"{number}.i.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_batch_file(path, ROWS, query="q", number=number)
    return pb.AdmitBatchRequest(
        incarnation="i",
        query="q",
        number=number,
        file=str(path.relative_to(outbox)),
        rows=written.rows,
        bytes=written.bytes,
    )


@pytest.fixture
def sinks() -> dict[str, dict[str, Any]]:
    """Return the sinks by query and name."""
    return {}


@pytest.fixture
async def local(tmp_path: Path, sinks: dict[str, dict[str, PreparedSink]]) -> AsyncIterator[Local]:
    directory = tmp_path / "outbox"
    outbox = Outbox.open(directory)
    recorder = Recorder(believed="i")
    service = LocalService(
        recorder,
        recorder,
        outbox,
        lambda query: sinks.get(query, {}),
        lambda query, number: None,
        recorder,
        check_logs=recorder.check_logs,
        buckets={
            "bucketed": lambda epoch: TABLE if epoch == TABLE.epoch else None,
            "topic": lambda epoch: replace(TOPIC, query="topic"),
        },
        claim_again=recorder.claimed_again.append,
    )
    server = LocalServer(service, tmp_path / "run" / "s")
    await server.start()
    watch = asyncio.create_task(server.watch(0.1))
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'run' / 's'}") as channel:
        yield Local(recorder, outbox, directory, service, LocalStub(channel))
    watch.cancel()
    await server.stop()


TABLE = BucketPlace(
    group="default",
    group_id="the-group",
    query="bucketed",
    sink="table",
    epoch=4,
    key=("a", "b"),
    buckets=8,
    timeout=10,
    target=Table("postgresql://u:secret@host/d", 2, "t", "upsert"),
)
TOPIC = replace(TABLE, target=Plugin("kafka", '{"topic": "t"}', '{"format": "json"}', "/srv"))


async def test_tasks_learn_where_they_write_once_their_epoch_has_claimed_the_sink(
    local: Local, tmp_path: Path
) -> None:
    def request(query: str, epoch: int) -> pb.LocateBucketsRequest:
        return pb.LocateBucketsRequest(incarnation="i", query=query, epoch=epoch)

    link = NodeLink(Address(str(tmp_path / "run" / "s"), "i"))
    assert await asyncio.to_thread(BucketWriter(link, "bucketed", 4).place) == TABLE
    topic = await asyncio.to_thread(BucketWriter(link, "topic", 4).place)
    assert topic == replace(TOPIC, query="topic")
    assert (await local.stub.LocateBuckets(request("bucketed", 5))).pending
    assert (await local.stub.LocateBuckets(request("another", 4))).pending
    with pytest.raises(grpc.aio.AioRpcError):
        await local.stub.LocateBuckets(pb.LocateBucketsRequest(incarnation="j", query="q"))
    local.recorder.log_error = SourceRefused("the topic is another one")
    with pytest.raises(grpc.aio.AioRpcError, match="another one"):
        await local.stub.LocateBuckets(request("bucketed", 4))


async def test_rows_that_tasks_have_written_are_rows_of_the_batch(local: Local) -> None:
    request = local.pending(1)
    request.written_rows = 40
    await local.stub.AdmitBatch(request)
    told = [one for one in local.recorder.told if isinstance(one, on.BatchAdmitted)]
    assert [one.rows for one in told] == [40 + request.rows]


async def test_failure_of_a_query_whose_tasks_write_has_its_sink_claimed_again(
    local: Local,
) -> None:
    for query in ("q", "bucketed"):
        failed = pb.QueryFailed(reason="a higher epoch", by_host=True)
        report = pb.ReportQueryRequest(incarnation="i", query=query, failed=failed)
        await local.stub.ReportQuery(report)
    assert local.recorder.claimed_again == ["bucketed"]


async def test_deleted_directory_of_the_socket_is_made_again(local: Local, tmp_path: Path) -> None:
    await local.stub.AdmitBatch(local.pending(1))
    shutil.rmtree(tmp_path / "run")
    await async_wait_until((tmp_path / "run" / "s").exists)
    await local.stub.AdmitBatch(local.pending(2))
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'run' / 's'}") as channel:
        await LocalStub(channel).AdmitBatch(local.pending(3))
    assert local.outbox.last_admitted("q") == 3


async def test_socket_that_cannot_be_made_is_made_later(local: Local, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir(mode=0o755)
    with capture_logs() as logs:
        await async_wait_until(lambda: any("was not made" in one["event"] for one in logs))
    (tmp_path / "run").chmod(0o700)
    await async_wait_until((tmp_path / "run" / "s").exists)
    await local.stub.AdmitBatch(local.pending(1))


async def test_core_learns_of_a_batch_whose_caller_dies_during_its_admission(
    local: Local,
) -> None:
    for number in range(1, 40):
        call = local.stub.AdmitBatch(local.pending(number))
        await asyncio.sleep(0.0002 * (number % 10))  # chooses the moment of death, not a wait
        call.cancel()
        if number > local.outbox.last_admitted("q"):
            await local.stub.AdmitBatch(local.pending(number))
        await async_wait_until(lambda: local.admitted()[-1:] == [local.outbox.last_admitted("q")])
    assert sorted(set(local.admitted())) == list(range(1, 40))


async def verdict_of_other_rows(local: Local) -> int:
    """Admit batch 1, then run it again with another digest; return the verdict."""
    await local.stub.AdmitBatch(local.pending(1))
    again = local.pending(1)
    again.digest = "0" * 32
    reply = await local.stub.AdmitBatch(again)
    return int(reply.verdict)


async def test_second_run_with_another_digest_is_a_mismatch(local: Local) -> None:
    assert await verdict_of_other_rows(local) == pb.AdmitBatchReply.MISMATCH


async def test_second_run_of_a_batch_reports_its_digest(local: Local) -> None:
    """RULES.md#i6: the process that made it first may have ended before it reported the digest."""
    await local.stub.AdmitBatch(local.pending(1))
    admitted, again = local.outbox.batch("q", 1), local.pending(1)
    assert admitted is not None
    again.digest = digest_of_file(admitted.path)
    assert (await local.stub.AdmitBatch(again)).verdict == pb.AdmitBatchReply.DONE
    assert on.BatchDigested("q", 1, again.digest) in local.recorder.told


async def test_batch_of_the_code_before_a_change_is_kept(local: Local) -> None:
    local.recorder.changed_after = 1
    assert await verdict_of_other_rows(local) == pb.AdmitBatchReply.DONE
    assert not any(isinstance(event, on.BatchDigested) for event in local.recorder.told)


async def test_run_that_is_over_adds_no_batch(local: Local) -> None:
    local.recorder.over = "journal:1"
    request = local.pending(1)
    request.lineage = "journal:1"
    with pytest.raises(grpc.aio.AioRpcError, match="this run of query q is over") as refused:
        await local.stub.AdmitBatch(request)
    assert refused.value.code() is grpc.StatusCode.ABORTED
    request.lineage = "journal:2"
    await local.stub.AdmitBatch(request)
    assert local.admitted() == [1]


@pytest.mark.parametrize("first", ["q", "q~4"])
async def test_shadow_with_other_columns_than_its_query_is_refused(
    local: Local, first: str
) -> None:
    columns = {"q": pa.schema([("n", pa.int64())]), "q~4": pa.schema([("n", pa.string())])}
    refused = dict[str, str]()
    for query in sorted(columns, reverse=first != "q"):
        planned = pb.QueryPlanned(schema=columns[query].serialize().to_pybytes())
        report = pb.ReportQueryRequest(incarnation="i", query=query, planned=planned)
        refused[query] = (await local.stub.ReportQuery(report)).refused
    assert refused["q"] == ""
    (event,) = local.recorder.told
    assert isinstance(event, on.QueryRefused)
    assert event.query == "q~4"
    assert "yields the columns n string, but the sinks of the query get n int64" in event.reason


async def test_a_caller_of_another_incarnation_is_refused(local: Local) -> None:
    request = pb.AwaitMarkRequest(incarnation="other", query="q", after=0)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await local.stub.AwaitMark(request)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not local.recorder.told


async def test_an_orphan_is_counted_once_however_often_it_calls(local: Local) -> None:
    for incarnation in ("other", "other", "another", "i"):
        call = local.stub.ReportDigest(pb.ReportDigestRequest(incarnation=incarnation, query="q"))
        await asyncio.wait([asyncio.ensure_future(call.code())])
    assert local.recorder.orphans == 2


async def test_only_the_query_process_of_the_node_reports_executors(local: Local) -> None:
    request = pb.ReportExecutorsRequest(incarnation="i", application="app-7", live=1, wanted=2)
    await local.stub.ReportExecutors(request)
    other = pb.ReportExecutorsRequest(incarnation="other", application="app-8", live=2, wanted=2)
    call = local.stub.ReportExecutors(other)
    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    assert local.recorder.executors == [request]


async def test_query_that_waits_for_a_mark_is_reported_as_waiting(local: Local) -> None:
    waiting = poll(local, lineage="j:1")
    await async_wait_until(lambda: local.service.polls_pending == 1)
    local.service.answer_mark(Mark("q", 1, 7), "j:1")
    assert (await waiting).sequence == 7
    assert local.service.polls_pending == 0


async def test_query_that_spark_has_not_stopped_yet_takes_no_mark_of_the_new_version(
    local: Local,
) -> None:
    waiting = poll(local, lineage="j:9")
    await async_wait_until(lambda: local.service.polls_pending == 1)
    former = poll(local, lineage="j:1")
    await async_wait_until(lambda: local.service.polls_pending == 2)
    local.service.answer_mark(Mark("q", 1, 7), "j:9")
    assert (await waiting).sequence == 7
    assert not former.done()


def poll(local: Local, lineage: str) -> asyncio.Future[pb.AwaitMarkReply]:
    request = pb.AwaitMarkRequest(incarnation="i", query="q", after=0, lineage=lineage)
    return asyncio.ensure_future(local.stub.AwaitMark(request))


async def test_query_whose_next_mark_is_trimmed_does_not_wait_for_it(local: Local) -> None:
    local.recorder.trimmed_through = 5
    request = pb.AwaitMarkRequest(incarnation="i", query="q", after=4)
    assert (await local.stub.AwaitMark(request)).trimmed
    assert local.service.polls_pending == 0
    assert local.recorder.told == []


async def test_query_whose_next_records_are_trimmed_is_told(local: Local) -> None:
    """A trim ends at a barrier, whose mark comes later. So the mark is kept without records."""
    local.recorder.trimmed_through = 4
    for first, trimmed in [(4, True), (5, False)]:
        request = pb.LocateRequest(incarnation="i", query="q", number=1, first_sequence=first)
        assert (await local.stub.Locate(request)).trimmed is trimmed


class HungFiles(OsFiles):
    """A disk whose fsync of a directory does not return before ``returns`` is set."""

    def __init__(self) -> None:
        self.returns = threading.Event()
        self.returns.set()

    def fsync_directory(self, path: Path) -> None:
        self.returns.wait()


async def test_disk_that_hangs_while_it_admits_a_batch_ends_the_node(tmp_path: Path) -> None:
    """The journal may have a disk of its own, which does not hang."""
    files, stuck, recorder = HungFiles(), asyncio.Event(), Recorder(believed="i")
    outbox = Outbox.open(tmp_path / "outbox", files=files)
    service = LocalService(
        recorder,
        recorder,
        outbox,
        lambda query: {},
        lambda query, number: None,
        recorder,
        stuck.set,
        stuck_after=0.3,
    )
    request = pending(tmp_path / "outbox", 1)
    files.returns.clear()
    admission = asyncio.create_task(service.AdmitBatch(request, None))  # type: ignore[arg-type]
    try:
        await asyncio.wait_for(stuck.wait(), 10)
        assert service.outbox_is_late
    finally:
        files.returns.set()
    assert (await admission).verdict == pb.AdmitBatchReply.ADMITTED
    assert not service.outbox_is_late


async def test_batch_is_admitted_while_sinks_take_all_other_threads(local: Local) -> None:
    """A change of the outbox that waits for a sink would look like a disk that hangs."""
    returns = threading.Event()
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(threads)
    blocked = asyncio.create_task(asyncio.to_thread(returns.wait))
    try:
        reply = await asyncio.wait_for(local.stub.AdmitBatch(local.pending(1)), 60)
        assert reply.verdict == pb.AdmitBatchReply.ADMITTED
        assert not blocked.done()
    finally:
        returns.set()
    await blocked


async def test_run_command_reaches_an_attending_query_process(local: Local) -> None:
    stream = local.stub.Attend(pb.AttendRequest(incarnation="i", release=__version__))
    await async_wait_until(lambda: on.QueryProcessAttended("i") in local.recorder.told)
    local.service.run_query(do.RunQuery("q", "journal:2", Mark("q", 4, 17), False, "d"))
    command = await stream.read()
    assert command.run == pb.RunQuery(
        query="q",
        lineage="journal:2",
        initial_mark=4,
        initial_sequence=17,
        must_resume=False,
        digest="d",
    )
    stream.cancel()


async def test_query_process_of_another_release_is_refused(local: Local) -> None:
    stream = local.stub.Attend(pb.AttendRequest(incarnation="i", release="0.0.9"))
    assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    assert local.recorder.told == []


@pytest.mark.usefixtures("plugin_example")
async def test_sink_that_raises_at_a_schema_stops_only_its_own_query(
    local: Local, sinks: dict[str, dict[str, PreparedSink]], database_url: str
) -> None:
    options = {"bad": {"how": "refuses the schema"}, "good": {"directory": str(local.directory)}}
    kinds = {"bad": "broken", "good": "lines"}
    for query, kind in kinds.items():
        sinks[query] = {"out": plugin_sink(local.directory, database_url, kind, options[query])}
    planned = pb.QueryPlanned(schema=ROWS.schema.serialize().to_pybytes())
    refused = {
        query: (
            await local.stub.ReportQuery(
                pb.ReportQueryRequest(incarnation="i", query=query, planned=planned)
            )
        ).refused
        for query in kinds
    }
    assert refused["good"] == ""
    assert "failed in prepare: KeyError: 'no such column'" in refused["bad"]
    assert local.recorder.told == [on.QueryRefused("bad", refused["bad"], "")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceUnavailable("no broker answers"), grpc.StatusCode.UNAVAILABLE),
        (SourceRefused("it was created again"), grpc.StatusCode.ABORTED),
    ],
)
async def test_batch_that_may_be_of_another_log_is_not_admitted(
    local: Local, error: Exception, code: grpc.StatusCode
) -> None:
    local.recorder.log_error = error
    with pytest.raises(grpc.aio.AioRpcError, match=str(error)) as refused:
        await local.stub.AdmitBatch(local.pending(1))
    assert refused.value.code() is code
    local.recorder.log_error = None
    await local.stub.AdmitBatch(local.pending(1))
    assert local.admitted() == [1]


async def test_log_that_has_not_begun_is_asked_for_again(local: Local) -> None:
    request = pb.LogEndsRequest(incarnation="i", stream="s", sequence=3)
    assert (await local.stub.LogEnds(request)).pending
    local.recorder.ends = "{}"
    assert (await local.stub.LogEnds(request)).ends == "{}"
