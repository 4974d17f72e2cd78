"""The sink kind ``s3`` with a real server: each batch is one object, which never changes."""

from __future__ import annotations

import gzip
import io
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ha_engine.connectors.s3.sink import S3Sink
from ha_engine.errors import SinkRefused, SinkUnavailable
from ha_engine.plugins import SinkPlace
from ha_engine.plugins.row_files import row_file
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import SCHEMA, batch_of, numbered, refusal_of
from tests.connectors.deliveries import deliver_at_once, deliver_with_kills
from tests.connectors.proxy import Proxy
from tests.connectors.s3_broker import BUCKET, S3Broker, gateway, new_folder, running_broker
from tests.connectors.server import free_port
from tests.connectors.settings import OfSetting
from tests.connectors.stubborn import answering
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[S3Broker]:
    with running_broker() as broker:
        yield broker


class Setting:
    """A folder of a bucket, and sinks that deliver to it."""

    def __init__(self, broker: S3Broker) -> None:
        self.broker, self.name = broker, new_folder()
        self.folder = broker.folder(self.name)

    def options(self, **options: Any) -> dict[str, Any]:
        written = {"url": f"s3://{BUCKET}/{self.name}", "endpoint": self.broker.url}
        keys = {"access_key_id": "sink", "secret_access_key": "hunter2"}
        return written | keys | {"region": "us-east-1", "timeout": "60s"} | options

    def made(self, **options: Any) -> S3Sink:
        place = SinkPlace("group", "query", "sink", lambda *_: None)
        return S3Sink(S3Sink.Options.model_validate(self.options(**options)), place)

    def objects(self) -> dict[str, bytes]:
        keys = sorted(one["path"] for one in self.folder.list().collect())
        return {key: bytes(self.folder.get(key).bytes()) for key in keys}

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for one in self.objects().values() for line in one.splitlines()]

    def values(self) -> list[bytes]:
        """The rows as the values that ``tests.connectors.deliveries`` expects."""
        return [
            b"%d/%d" % (int(key.split("/")[1].split(".")[0]), json.loads(line)["id"])
            for key, content in self.objects().items()
            for line in content.splitlines()
        ]


@pytest.fixture
def setting(shared: S3Broker) -> Setting:
    return Setting(shared)


class Directory(Setting):
    """A directory, and sinks that deliver to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def options(self, **options: Any) -> dict[str, Any]:
        return {"url": f"file://{self.path}"} | options


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


class TestContract(OfSetting, SinkContract):
    kind = S3Sink

    def delivered(self) -> list[dict[str, Any]]:
        return self.setting.rows()


class TestContractInDirectory(SinkContract):
    kind = S3Sink

    def options(self) -> dict[str, Any]:
        return {"url": f"file://{self.home}"}

    def delivered(self) -> list[dict[str, Any]]:
        files = sorted(self.home.glob("query/*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


# -- objects ---------------------------------------------------------------------------------------


def test_object_has_the_batch_in_its_key_and_its_media_type(setting: Setting) -> None:
    setting.made().deliver(batch_of(7, numbered(7)))
    assert list(setting.objects()) == ["query/000000000007.jsonl"]
    attributes = setting.folder.get("query/000000000007.jsonl").attributes
    assert attributes["Content-Type"] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"format": "jsonl", "compression": "gzip"}, "jsonl.gz"),
        ({"format": "jsonl", "compression": "zstd"}, "jsonl.zst"),
        ({"format": "csv"}, "csv"),
        ({"format": "csv", "compression": "gzip"}, "csv.gz"),
        ({"format": "parquet"}, "parquet"),
        ({"format": "arrow"}, "arrow"),
    ],
)
def test_each_format_has_the_rows_however_they_are_chunked(
    setting: Setting, options: dict[str, Any], end: str
) -> None:
    sink, rows = setting.made(**options), numbered(1, 500)
    sink.prepare(SCHEMA)
    sink.deliver(batch_of(1, rows))
    parts = pa.concat_tables([rows.slice(0, 3), rows.slice(3)])
    setting.made(**options).deliver(batch_of(1, parts))
    [(key, content)] = setting.objects().items()
    assert key == f"query/000000000001.{end}"
    if end.endswith(".gz"):
        content = gzip.decompress(content)
    if end.endswith(".zst"):
        content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    assert _read(content, end.split(".")[0]).equals(rows)


def _read(content: bytes, form: str) -> pa.Table:
    match form:
        case "parquet":
            return pq.read_table(io.BytesIO(content))
        case "arrow":
            return pa.ipc.open_file(content).read_all()
        case "csv":
            options = pyarrow.csv.ParseOptions(newlines_in_values=True)
            return pyarrow.csv.read_csv(io.BytesIO(content), parse_options=options)
    return pa.Table.from_pylist([json.loads(line) for line in content.splitlines()], SCHEMA)


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_object_of_another_version_of_the_library_is_the_same_batch(
    setting: Setting, form: str
) -> None:
    rows, buffer, end = numbered(1, 50), io.BytesIO(), ""
    match form:
        case "parquet":
            pq.write_table(rows, buffer, compression="none", row_group_size=7)
        case "arrow":
            with pa.ipc.new_file(buffer, rows.schema) as writer:
                writer.write_table(rows, max_chunksize=7)
        case _:
            end = ".gz"
            buffer.write(gzip.compress(row_file(rows, "jsonl"), 1, mtime=7))
    key, content = f"query/000000000001.{form}{end}", buffer.getvalue()
    setting.folder.put(key, content)
    options = {"compression": "gzip"} if end else {}
    sink = setting.made(format=form, **options)
    sink.deliver(batch_of(1, rows))
    with pytest.raises(SinkRefused, match="has other rows than this batch"):
        sink.deliver(batch_of(1, numbered(2, 50)))
    assert setting.objects() == {key: content}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, None], None]),
        pa.array([{"a": [{"b": "x"}]}, None]),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array([1, None], pa.timestamp("s")),
        pa.array([1, None], pa.time32("s")),
    ],
    ids=lambda column: str(column.type),
)
def test_parquet_of_another_version_is_the_same_batch_with_each_type(
    directory: Directory, column: pa.Array
) -> None:
    rows = pa.table({"value": column})
    file = directory.path / "query/000000000001.parquet"
    file.parent.mkdir()
    pq.write_table(rows, file, compression="none")
    sink = directory.made(format="parquet")
    sink.deliver(batch_of(1, rows))
    with pytest.raises(SinkRefused, match="has other rows than this batch"):
        sink.deliver(batch_of(1, rows.slice(1)))


def test_column_without_a_form_is_refused_before_the_query_runs(setting: Setting) -> None:
    with pytest.raises(SinkRefused, match="no form in JSON"):
        setting.made().prepare(pa.schema({"a": pa.duration("s")}))


def test_batch_with_a_row_of_ten_megabytes_is_one_object(setting: Setting) -> None:
    rows = pa.table({"text": ["x" * 10_000_000]})
    setting.made().deliver(batch_of(1, rows, 60))
    [content] = setting.objects().values()
    assert len(content) == 10_000_012


# -- exactly once ----------------------------------------------------------------------------------


def test_other_rows_of_a_batch_are_refused_and_replace_nothing(setting: Setting) -> None:
    """A forced failover gave up the rows of the former active, which delivers them late."""
    setting.made().deliver(batch_of(1, numbered(1)))
    before = setting.objects()
    for content in (b"", b"{}\n", b"x" * 3_000_000):
        setting.folder.put("query/000000000002.jsonl", content)
        with pytest.raises(SinkRefused, match=r"query/000000000002.jsonl in .* has other rows"):
            setting.made().deliver(batch_of(2, numbered(2)))
        assert setting.objects() == before | {"query/000000000002.jsonl": content}


@pytest.mark.parametrize("size", [0, 200, 3_000])
def test_frozen_active_replaces_nothing_after_the_next_one(setting: Setting, size: int) -> None:
    proxy = Proxy(setting.broker.port)
    zombie = setting.made(endpoint=f"http://127.0.0.1:{proxy.port}")
    zombie.deliver(batch_of(1, numbered(1)))
    proxy.freeze_after(size)
    ended = threading.Event()

    def deliver() -> None:
        zombie.deliver(batch_of(2, numbered(2, 90), 60))
        ended.set()

    thread = threading.Thread(target=deliver)
    thread.start()
    wait_until(lambda: proxy.is_frozen)
    setting.made().deliver(batch_of(2, numbered(2, 90)))
    setting.made().deliver(batch_of(3, numbered(3)))
    before = setting.objects()
    times = _times(setting)
    proxy.thaw()
    thread.join()
    proxy.close()
    assert ended.is_set()
    assert setting.objects() == before
    assert _times(setting) == times


def _times(setting: Setting) -> dict[str, Any]:
    return {one["path"]: one["last_modified"] for one in setting.folder.list().collect()}


@pytest.mark.parametrize("seed", range(3))
def test_kills_lose_and_double_nothing(setting: Setting, seed: int) -> None:
    with gateway(setting.broker) as server:
        expected = deliver_with_kills(
            lambda: setting.made(endpoint=server.url), server, seed, 2_000
        )
    assert setting.values() == expected


def test_two_actives_at_once_deliver_each_batch_once(setting: Setting) -> None:
    expected = deliver_at_once([setting.made(), setting.made(), setting.made()])
    assert setting.values() == expected


@pytest.mark.parametrize("seed", range(10))
def test_one_of_two_actives_with_other_rows_is_refused(tmp_path: Path, seed: int) -> None:
    """A directory, since neither server of S3 for tests decides such a race."""
    chance, outcomes = random.Random(seed), list[str]()
    place = SinkPlace("group", "query", "sink", lambda *_: None)

    def deliver(first: int) -> None:
        sink = S3Sink(S3Sink.Options.model_validate({"url": f"file://{tmp_path}"}), place)
        try:
            sink.deliver(batch_of(1, numbered(first, chance.randrange(1, 2_000))))
            outcomes.append("delivered")
        except SinkRefused:
            outcomes.append("refused")

    threads = [threading.Thread(target=deliver, args=(first,)) for first in (1, 2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(outcomes) == ["delivered", "refused"]
    [file] = tmp_path.glob("query/*")
    ids = {json.loads(line)["id"] // 1000 for line in file.read_bytes().splitlines()}
    assert ids in ({1, 2}, {1}, {2, 3}, {2})


def test_server_that_ignores_the_condition_is_refused(setting: Setting) -> None:
    with answering({"PUT": (200, "", {"ETag": '"1"'})}) as port:
        sink = setting.made(endpoint=f"http://127.0.0.1:{port}")
        with pytest.raises(SinkRefused, match="If-None-Match"):
            sink.deliver(batch_of(1, numbered(1)))


# -- failures --------------------------------------------------------------------------------------


def test_server_that_is_down_is_unavailable(setting: Setting) -> None:
    port, began = free_port(), time.monotonic()
    sink = setting.made(endpoint=f"http://127.0.0.1:{port}")
    for call in (sink.check, lambda: sink.deliver(batch_of(1, numbered(1)))):
        with pytest.raises(SinkUnavailable, match=f"{port} is not available: .*refused"):
            call()
    assert time.monotonic() - began < 20


def test_server_that_hangs_is_unavailable_in_time(setting: Setting) -> None:
    proxy = Proxy(setting.broker.port)
    proxy.freeze_after(0)
    sink, began = setting.made(endpoint=f"http://127.0.0.1:{proxy.port}", timeout="200ms"), 0.0
    began = time.monotonic()
    with pytest.raises(SinkUnavailable, match="is not available"):
        sink.deliver(batch_of(1, numbered(1)))
    assert time.monotonic() - began < 20
    proxy.close()


def test_deadline_that_passed_is_unavailable(setting: Setting) -> None:
    with pytest.raises(SinkUnavailable, match="deadline"):
        setting.made().deliver(batch_of(1, numbered(1), 0.0))
    assert setting.objects() == {}


def test_missing_bucket_is_refused(setting: Setting) -> None:
    sink = setting.made(url="s3://no-such-bucket/orders")
    for call in (sink.check, lambda: sink.deliver(batch_of(1, numbered(1)))):
        with pytest.raises(SinkRefused, match=r"s3://no-such-bucket/orders .*no such bucket"):
            call()


def test_server_of_another_protocol_is_refused(setting: Setting) -> None:
    """Its answer has no code, so it does not say that only the object is missing."""
    with answering({"GET": (404, "<html>Not Found</html>", {})}) as port:
        sink = setting.made(endpoint=f"http://127.0.0.1:{port}", timeout="1s")
        with pytest.raises(SinkRefused, match="status 404; correct url and endpoint"):
            sink.check()


def test_check_writes_nothing(setting: Setting) -> None:
    setting.made().check()
    assert setting.objects() == {}


@pytest.mark.parametrize(
    ("answer", "error", "part"),
    [
        ((503, "SlowDown"), SinkUnavailable, "SlowDown"),
        ((500, "InternalError"), SinkUnavailable, "InternalError"),
        ((409, "ConditionalRequestConflict"), SinkUnavailable, "ConditionalRequestConflict"),
        ((403, "SignatureDoesNotMatch"), SinkRefused, "refuses the credentials"),
        ((403, "InvalidAccessKeyId"), SinkRefused, "refuses the credentials"),
        ((403, "AccessDenied"), SinkRefused, "the right s3:PutObject"),
        ((301, "PermanentRedirect"), SinkRefused, "correct region"),
        ((400, "EntityTooLarge"), SinkRefused, "EntityTooLarge"),
    ],
)
def test_errors_of_servers_are_told_apart(
    setting: Setting, answer: tuple[int, str], error: type[Exception], part: str
) -> None:
    status, code = answer
    body = f"<Error><Code>{code}</Code><Message>the reason</Message></Error>"
    with answering({"PUT": (status, body, {}), "GET": (status, body, {})}) as port:
        sink = setting.made(endpoint=f"http://127.0.0.1:{port}", timeout="1s")
        with pytest.raises(error, match=part) as raised:
            sink.deliver(batch_of(1, numbered(1)))
    assert "hunter2" not in repr(raised.value) + repr(raised.value.__cause__)


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"url": "http://example/bucket"}, "scheme"),
        ({"url": "s3:///folder"}, "needs a bucket"),
        ({"url": "s3://user:pass@bucket/folder"}, "credentials have their own keys"),
        ({"access_key_id": "a"}, "belong together"),
        ({"session_token": "a"}, "session_token needs"),
        ({"anonymous": True}, "sources only"),
        ({"endpoint": "127.0.0.1:9000"}, "endpoint"),
        ({"url": "gs://bucket", "region": "us-east-1"}, "for s3 only"),
        ({"format": "parquet", "compression": "gzip"}, "has its own"),
        ({"timeout": "0s"}, "timeout"),
    ],
)
def test_wrong_options_are_refused(written: dict[str, Any], part: str) -> None:
    assert part in refusal_of(S3Sink.Options, {"url": "s3://bucket"} | written)
