"""The source kind ``s3`` with a real server: each object is read once, and none is lost."""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ha_engine.connectors.s3 import reader
from ha_engine.connectors.s3.ledger import ENTRIES_MAX
from ha_engine.connectors.s3.source import S3Source
from ha_engine.connectors.s3.store import ObjectMeta, Store
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SourceBatch, SourcePlace
from ha_engine.testing import SourceContract
from ha_engine.testing.sink_contract import SCHEMA, refusal_of
from tests.connectors.deliveries import numbered, rest, values
from tests.connectors.proxy import Proxy
from tests.connectors.s3_broker import (
    BUCKET,
    EncryptedBroker,
    S3Broker,
    gateway,
    new_folder,
    running_broker,
)
from tests.connectors.server import free_port, running
from tests.connectors.settings import require_bounded_batches
from tests.connectors.stubborn import answering
from tests.programs import needs

pytestmark = pytest.mark.rotates("file")


@pytest.fixture(scope="module")
def shared() -> Iterator[S3Broker]:
    with running_broker() as broker:
        yield broker


class Setting:
    """A folder of a bucket, and sources that read it."""

    def __init__(self, broker: S3Broker) -> None:
        self.broker, self.name = broker, new_folder()
        self.folder = broker.folder(self.name)
        self._objects = 0

    def put(self, *lines: bytes, key: str | None = None) -> None:
        """Create an object with ``lines``, by default with a key after all others."""
        if key is None:
            self._objects += 1
            key = f"{self._objects:06d}.jsonl"
        self.folder.put(key, b"".join(line + b"\n" for line in lines))

    def options(self, **options: Any) -> dict[str, Any]:
        written = {"url": f"s3://{BUCKET}/{self.name}", "endpoint": self.broker.url}
        keys = {"access_key_id": "source", "secret_access_key": "hunter2"}
        times = {"timeout": "60s", "poll": "1ms", "look_back": "1ms"}
        return written | keys | times | {"region": "us-east-1"} | options

    def made(self, *attributes: str, **options: Any) -> S3Source:
        place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
        return S3Source(S3Source.Options.model_validate(self.options(**options)), place)

    def opened(self, offset: str | None = None, **options: Any) -> S3Source:
        source = self.made(**options)
        source.open(offset)
        return source

    def all(self, offset: str | None = None, **options: Any) -> SourceBatch:
        """Return the next batch after ``offset``, which is all that there is."""
        source = self.opened(offset, **options)
        batch = source.read(10_000, 60)
        assert source.read(10_000, 0.0) is None
        source.close()
        assert batch is not None
        return batch


@pytest.fixture
def setting(shared: S3Broker) -> Setting:
    return Setting(shared)


class Directory(Setting):
    """A directory, for tests with many objects."""

    def __init__(self, path: Path) -> None:
        from obstore.store import LocalStore

        self.path, self.folder, self._objects = path, LocalStore(path), 0

    def options(self, **options: Any) -> dict[str, Any]:
        return {"url": f"file://{self.path}", "poll": "1ms", "look_back": "1ms"} | options


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


class TestContract(SourceContract):
    kind = S3Source
    setting: Setting

    @pytest.fixture(autouse=True)
    def _use(self, setting: Setting) -> None:
        self.setting = setting

    def options(self) -> dict[str, Any]:
        return self.setting.options(poll="10ms")

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.setting.put(*(json.dumps(row).encode() for row in rows))


@pytest.mark.nightly("TestContract has the same tests with a server")
class TestContractInDirectory(SourceContract):
    kind = S3Source
    files = 0

    def options(self) -> dict[str, Any]:
        return {"url": f"file://{self.home}", "poll": "10ms"}

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.files += 1
        part, whole = self.home / "part", self.home / f"{self.files:03d}"
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole.hardlink_to(part)
        part.unlink()


# -- what a batch has ------------------------------------------------------------------------------


def test_messages_have_attributes_places_and_a_backlog(setting: Setting) -> None:
    setting.put(b"1", b"", b"2", b"3", key="2026/a b+ü%.jsonl")
    setting.put(b"4", key="2026/b.jsonl")
    setting.put(key="2026/empty.jsonl")
    source = setting.made("key", "line", "etag", "size", "timestamp")
    source.open(None)
    batch, last = source.read(2, 60), source.read(10, 60)
    assert source.read(10, 0) is None
    source.close()
    assert batch is not None
    assert last is not None
    assert values(batch) == [b"1", b"2"]
    assert isinstance(batch.rows, Messages)
    found = dict(batch.rows.attributes)
    assert found["key"] == ["2026/a b+ü%.jsonl"] * 2
    assert found["line"] == [1, 3]
    assert found["size"] == [7, 7]
    assert found["etag"] == [setting.folder.head("2026/a b+ü%.jsonl")["e_tag"].strip('"')] * 2
    assert abs((datetime.now(UTC) - found["timestamp"][0]).total_seconds()) < 600
    assert batch.place(1) == "2026/a b+ü%.jsonl:3"
    assert batch.backlog is not None
    assert batch.backlog.bytes == 4
    assert batch.backlog.seconds is not None
    assert values(last) == [b"3", b"4"]
    assert last.backlog is not None
    assert (last.backlog.bytes, last.backlog.seconds) == (0, 0.0)


def test_object_is_one_message(setting: Setting) -> None:
    setting.folder.put("1", b"a\nb\n")
    setting.folder.put("2.gz", gzip.compress(b"c\n\n"))
    batch = setting.all(message="object")
    assert values(batch) == [b"a\nb\n", b"c\n\n"]
    assert batch.place(0) == "1"


def test_pattern_start_and_skipped_lines_choose_the_messages(setting: Setting) -> None:
    for key in ("a/1.csv", "b/1.csv", "b/1.txt", "c/1.csv"):
        setting.put(b"\xef\xbb\xbfheader", key.encode(), key=key)
    found = setting.all(pattern="*.csv", skip_lines=1, start_after="a/1.csv")
    assert values(found) == [b"b/1.csv", b"c/1.csv"]
    setting.put(b"x", b"late", key="a/2.csv")
    found = setting.all(found.offset, pattern="*.csv", skip_lines=1)
    assert values(found) == [b"late"]


def test_byte_order_mark_and_line_ends_are_no_part_of_a_message(setting: Setting) -> None:
    setting.folder.put("1", b"\xef\xbb\xbf1\r\n2\r\n\r\n  \n3")
    assert values(setting.all()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("end", "codec"), [("gz", "gzip"), ("zst", "zstd"), ("bin", "zstd")])
def test_compressed_objects_are_read_from_any_offset(
    setting: Setting, end: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 500)
    lines = [b"%d" % random.randrange(1 << 60) for _ in range(200)]
    content = b"".join(line + b"\n" for line in lines)
    # Several members, as an archive has that is appended to.
    members = (content[:1000], content[1000:])
    setting.folder.put(f"1.{end}", b"".join(_compressed(one, codec) for one in members))
    compression = "auto" if end != "bin" else codec
    found, offset = list[bytes | None](), None
    while len(found) < 200:
        source = setting.opened(offset, compression=compression)
        batch = source.read(33, 60)
        source.close()
        assert batch is not None
        assert not batch.dead_letters
        found, offset = found + values(batch), batch.offset
    assert found == lines


def _compressed(content: bytes, codec: str) -> bytes:
    return gzip.compress(content) if codec == "gzip" else bytes(pa.Codec(codec).compress(content))


def test_damaged_rest_of_a_compressed_object_is_a_dead_letter(setting: Setting) -> None:
    lines = b"".join(b"%d\n" % random.randrange(1 << 60) for _ in range(20_000))
    setting.folder.put("1.gz", gzip.compress(lines)[:-9])
    setting.folder.put("2.gz", b"no gzip\n")
    setting.put(b"after", key="3")
    found, letters, offset = list[bytes | None](), list[str](), None
    while b"after" not in found:
        source = setting.opened(offset)
        batch = source.read(5_000, 60)
        source.close()
        assert batch is not None
        found, offset = found + values(batch), batch.offset
        letters += [f"{one.place} {one.reason}" for one in batch.dead_letters]
    assert found[:-1] == lines.splitlines()[: len(found) - 1]
    assert len(found) > 19_000, "lines before the damage are lost"
    assert ["cannot be decompressed" in one for one in letters] == [True, True]
    assert letters[1].startswith("2.gz:1 the rest of the object, after 0 bytes")


def test_batch_is_limited_in_bytes_but_a_single_larger_message_comes_alone(
    setting: Setting,
) -> None:
    require_bounded_batches(setting)


@pytest.mark.parametrize("message", ["line", "object"])
def test_too_long_message_is_a_dead_letter_with_its_beginning(
    setting: Setting, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reader, "ha_engine.connectors.s3.source"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.MESSAGE_BYTES_MAX", 100_000)
    monkeypatch.setattr(reader, "PIECE_BYTES", 60_000)
    setting.folder.put("1", b"x" * 150_000 + b"\n")
    setting.folder.put("2", b"after\n")
    batch = setting.all(message=message)
    assert [(value or b"").strip() for value in values(batch)] == [b"after"]
    [letter] = batch.dead_letters
    assert letter.reason == "the message is longer than 100000 bytes"
    assert letter.raw == b"x" * 65_536


def test_long_part_without_a_message_moves_the_offset(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.s3.source.BATCH_BYTES_MAX", 1_000)
    setting.folder.put("1", b"\n" * 5_000 + b"last\n")
    source = setting.opened()
    first = source.read(10, 60)
    assert first is not None
    assert not first.rows
    source.close()
    assert '"partly":{"key":"1"' in first.offset
    other = setting.opened(first.offset)
    assert rest(other, 1) == [b"last"]
    other.close()


def test_peek_and_check_take_nothing(setting: Setting) -> None:
    setting.made().check()
    setting.put(b"1", b"2", b"3")
    source = setting.opened()
    assert values(source.read(1, 60)) == [b"1"]
    other = setting.made()
    other.check()
    assert values(other.peek(None, 2, 60)) == [b"1", b"2"]
    assert rest(source, 2) == [b"2", b"3"]
    source.close()


def test_more_objects_than_a_page_are_read_in_their_order(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.s3.source.PAGE_OBJECTS", 7)
    for one in range(30):
        setting.put(b"%d" % one)
    source = setting.opened(poll="1h")
    assert rest(source, 30) == numbered(*range(30))
    source.close()


def test_listing_that_is_slower_than_poll_leaves_pauses(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many objects behind the frontier may have keys that do not match."""
    began = list[float]()

    def listed(*_: str) -> Iterator[ObjectMeta]:
        began.append(time.monotonic())
        time.sleep(0.05)
        return iter(())

    source = directory.opened()
    monkeypatch.setattr(source._store, "listed", listed)
    assert source.read(10, 1.0) is None
    pauses = [after - before for before, after in pairwise(began)]
    assert pauses
    assert min(pauses) >= 0.1
    source.close()


@pytest.mark.nightly("it creates 1,200 objects; the test above has smaller pages")
def test_more_objects_than_a_listing_of_the_server_are_read_in_their_order(
    setting: Setting,
) -> None:
    """A page of a listing has at most 1,000 objects."""
    for one in range(1_203):
        setting.put(b"%d" % one)
    source = setting.opened()
    assert rest(source, 1_203) == numbered(*range(1_203))
    source.close()
    offset = setting.all().offset
    setting.put(b"late", key="000500.late")
    assert values(setting.all(offset)) == [b"late"]


def test_objects_of_a_store_without_etags_are_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an object is then its version."""
    made = ObjectMeta.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(ObjectMeta, "of", lambda found: made(ObjectMeta, found | {"e_tag": None}))
    directory.put(b"1", b"2")
    source = directory.opened()
    batch = source.read(1, 60)
    source.close()
    assert batch is not None
    assert values(batch) == [b"1"]
    assert values(directory.all(batch.offset)) == [b"2"]


# -- objects that appear before the last one read --------------------------------------------------


def test_late_object_is_read_by_the_same_and_by_the_next_active(setting: Setting) -> None:
    for key in ("b", "d"):
        setting.put(key.encode(), key=key)
    first = setting.all()
    source = setting.opened(first.offset)
    assert source.read(10, 0) is None
    setting.put(b"c", key="c")
    same = source.read(10, 60)
    assert same is not None
    assert values(same) == [b"c"]
    source.close()
    setting.put(b"a", key="a")
    assert values(setting.all(same.offset)) == [b"a"]
    # The next active of an older offset finds both.
    assert sorted(map(str, values(setting.all(first.offset)))) == ["b'a'", "b'c'"]


def test_late_object_is_read_in_parts(setting: Setting) -> None:
    setting.put(b"1", key="b")
    offset = setting.all().offset
    setting.put(*numbered(2, 3, 4), key="a")
    setting.put(b"5", key="c")
    found = list[bytes | None]()
    while len(found) < 4:
        source = setting.opened(offset)
        batch = source.read(1, 60)
        source.close()
        assert batch is not None
        found, offset = found + values(batch), batch.offset
    assert found == numbered(2, 3, 4, 5)


def test_deleted_objects_are_no_loss_and_leave_the_ledger(directory: Directory) -> None:
    count = 2 * ENTRIES_MAX
    for number in range(count):
        directory.put(b"%d" % number)
    source = directory.opened()
    found = source.read(10_000, 60)
    assert len(values(found)) == count
    deleted = [f"{number + 1:06d}.jsonl" for number in range(count - 2)]
    directory.folder.delete(deleted)
    after = source.read(10, 60)
    assert after is not None
    assert not after.rows
    source.close()
    # The next active would not know so many deletions from the offset before them.
    directory.put(b"late", key="0")
    assert values(directory.all(after.offset)) == [b"late"]


def test_few_deletions_between_two_actives_are_recognised(directory: Directory) -> None:
    for number in range(100):
        directory.put(b"%d" % number)
    offset = directory.all().offset
    directory.folder.delete([f"{number + 1:06d}.jsonl" for number in range(ENTRIES_MAX // 2)])
    for number in range(ENTRIES_MAX // 2 - 2):
        directory.put(b"late %d" % number, key=f"000050.late{number:02d}")
    batch = directory.all(offset)
    assert values(batch) == [b"late %d" % number for number in range(ENTRIES_MAX // 2 - 2)]


def test_many_objects_with_random_keys_that_appear_between_two_actives_are_read(
    directory: Directory,
) -> None:
    chance, count, written = random.Random(4), 3 * ENTRIES_MAX, 0
    found, offset = list[bytes | None](), None
    for _ in range(3):
        for _ in range(count):
            directory.put(b"%d" % written, key=f"{chance.random()}")
            written += 1
        # The next actives read some of the objects, and then all.
        for rows_max in (7, count // 2, 10_000):
            source = directory.opened(offset)
            batch = source.read(rows_max, 60)
            source.close()
            assert batch is not None
            assert not batch.dead_letters
            found, offset = found + values(batch), batch.offset
    assert sorted(found, key=lambda one: int(one or b"")) == numbered(*range(3 * count))


def test_too_many_changes_between_two_actives_are_refused_or_skipped(directory: Directory) -> None:
    for number in range(300):
        directory.put(b"%d" % number)
    offset = directory.all().offset
    directory.folder.delete([f"{number + 1:06d}.jsonl" for number in range(290)])
    directory.put(b"late", key="0")
    with pytest.raises(SourceRefused, match=r"which of the 11 objects .* skip_lost: true"):
        directory.opened(offset).read(10, 60)
    batch = directory.all(offset, skip_lost=True)
    assert not batch.rows
    assert ["taken as read" in one.reason for one in batch.dead_letters] == [True]
    directory.put(b"later", key="1")
    assert values(directory.all(batch.offset)) == [b"later"]


def test_writers_with_random_keys_lose_nothing(setting: Setting) -> None:
    """Objects appear in any order of their keys, while actives change and objects are deleted."""
    chance, put, found = random.Random(9), list[bytes](), list[bytes | None]()
    source, offset = setting.opened(), None
    keys = list[str]()
    while len(put) < 80 or len(found) < len(put):
        match chance.randrange(6) if len(put) < 80 else 9:
            case 0:
                source.close()
                source = setting.opened(offset)
                continue
            case 1 | 2:
                lines = [b"%d" % (len(put) + one) for one in range(chance.randrange(1, 6))]
                put += lines
                keys.append(f"{chance.random()}")
                setting.put(*lines, key=keys[-1])
                continue
            case 3 if len(found) == len(put) and keys:
                setting.folder.delete(keys.pop(chance.randrange(len(keys))))
                continue
        batch = source.read(chance.randrange(1, 9), 0.0)
        if batch is not None and chance.random() < 0.8:
            found, offset = found + values(batch), batch.offset
        elif batch is not None:
            source.open(offset)  # the batch was not journalled
    source.close()
    assert sorted(found, key=lambda one: int(one or b"")) == put


# -- changed and deleted objects -------------------------------------------------------------------


def _read_some(setting: Setting, count: int, **options: Any) -> tuple[S3Source, SourceBatch]:
    source = setting.opened(**options)
    batch = source.read(count, 60)
    assert batch is not None
    return source, batch


def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 8)


def test_object_deleted_while_it_is_read_is_refused_or_skipped(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small_pieces(monkeypatch)
    setting.put(*numbered(*range(10, 40)), key="1")
    setting.put(b"next", key="2")
    source, batch = _read_some(setting, 2)
    setting.folder.delete("1")
    while values(last := source.read(5, 60)) in ([b"12"], []):  # what the piece still had
        assert last is not None
        batch = last
        if not values(last):
            break
    source.close()
    pattern = r"1 in s3://events/.* was deleted after \d+ of its bytes were read; .*skip_lost"
    with pytest.raises(SourceRefused, match=pattern):
        setting.opened(batch.offset).read(10, 60)
    batch = setting.all(batch.offset, skip_lost=True)
    assert values(batch) == [b"next"]
    assert ["was deleted after" in one.reason for one in batch.dead_letters] == [True]


def test_object_deleted_after_it_was_listed_is_a_dead_letter(setting: Setting) -> None:
    for number in range(3):
        setting.put(b"%d" % number)
    source = setting.opened()
    assert values(source.read(1, 60)) == [b"0"]
    setting.folder.delete("000002.jsonl")
    batch = source.read(10, 60)
    source.close()
    assert values(batch) == [b"2"]
    assert batch is not None
    assert [one.reason for one in batch.dead_letters] == [
        "the object was deleted after 0 of its bytes were read"
    ]


def test_object_changed_while_it_is_read_is_refused_or_read_again(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small_pieces(monkeypatch)
    setting.put(*numbered(*range(10, 40)), key="1")
    setting.put(b"next", key="2")
    source, batch = _read_some(setting, 2)
    setting.put(*numbered(*range(50, 60)), key="1")
    with pytest.raises(SourceRefused, match=r"1 in .* was changed after \d+ of its bytes"):
        list(iter(lambda: source.read(10, 60), None))
    source.close()
    with pytest.raises(SourceRefused, match=r"was changed after \d+ of .* reread_changed: true"):
        setting.opened(batch.offset).read(10, 60)
    again = setting.all(batch.offset, reread_changed=True)
    assert values(again) == [*numbered(*range(50, 60)), b"next"]


def test_object_changed_before_it_is_read_is_read_as_it_is(setting: Setting) -> None:
    setting.put(b"0", key="0")
    setting.put(b"old", key="1")
    source, _ = _read_some(setting, 1)
    setting.put(b"new", key="1")
    assert rest(source, 1) == [b"new"]
    source.close()


@pytest.mark.parametrize("same", [True, False])
def test_object_changed_after_it_was_read_is_refused_or_read_again(
    setting: Setting, same: bool
) -> None:
    for number in range(3):
        setting.put(b"%d" % number)
    source, batch = _read_some(setting, 10)
    setting.put(b"0", b"more", key="000001.jsonl")
    if not same:
        source.close()
        source = setting.opened(batch.offset)
    with pytest.raises(SourceRefused, match=r"000001.jsonl in .* was changed after it was read"):
        source.read(10, 60)
    source.close()
    again = setting.all(batch.offset, reread_changed=True)
    assert values(again) == [b"0", b"more"]
    assert setting.opened(again.offset).read(10, 0) is None


def test_object_written_again_with_the_same_content_is_not_read_again(setting: Setting) -> None:
    setting.put(b"0", key="0")
    offset = setting.all().offset
    setting.put(b"0", key="0")
    assert setting.opened(offset).read(10, 0) is None


def test_many_objects_written_again_with_the_same_content_are_known_to_the_next_active(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in place gives an object another time, and the same ETag."""
    made = ObjectMeta.of.__func__  # type: ignore[attr-defined]
    same = {"e_tag": '"1"'}
    monkeypatch.setattr(ObjectMeta, "of", lambda found: made(ObjectMeta, found | same))
    monkeypatch.setattr(Store, "_condition", lambda *_: {})
    count = 3 * ENTRIES_MAX
    for number in range(count):
        directory.put(b"%d" % number, key=f"{number:03d}")
    first = directory.all()
    directory.put(b"last", key="999")
    offset = directory.all(first.offset).offset  # from now on, the offset has the greatest time
    for number in range(count):
        directory.put(b"%d" % number, key=f"{number:03d}")
    directory.put(b"late", key="0")
    assert values(directory.all(offset)) == [b"late"]


def test_offset_of_another_url_is_refused(setting: Setting) -> None:
    setting.put(b"1")
    offset = setting.all().offset
    with pytest.raises(SourceRefused, match=r"belongs to s3://events/.*another name"):
        setting.opened(offset.replace("/orders", "/others"))
    for other in ("17", "{}", offset.replace('"ledger":"', '"ledger":"x')):
        with pytest.raises(SourceRefused, match="another kind of source"):
            setting.opened(other)


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_kills_lose_and_repeat_nothing(
    setting: Setting, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 200)
    chance = random.Random(seed)
    for first in range(0, 400, 50):
        setting.put(*numbered(*range(first, first + 50)))
    found, offset = list[bytes | None](), None
    with gateway(setting.broker) as server:
        source = setting.opened(endpoint=server.url)
        while len(found) < 400:
            server.start()
            killer = threading.Timer(chance.random() / 20, server.kill)
            if chance.random() < 0.3:
                killer.start()
            try:
                batch = source.read(chance.randrange(1, 90), 0.02)
                if batch is not None and chance.random() < 0.9:
                    found, offset = found + values(batch), batch.offset
                elif batch is not None:
                    source = setting.opened(offset, endpoint=server.url)
            except SourceUnavailable:
                source.open(offset)
            killer.cancel()
        source.close()
    assert found == numbered(*range(400))


def test_failure_after_some_messages_ends_the_batch_and_is_raised_next(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.put(b"1")
    setting.put(b"2")
    source = setting.opened()
    real, calls = source._store.piece, list[str]()

    def piece(*arguments: Any) -> bytes:
        calls.append("")
        if len(calls) > 1:
            raise SourceUnavailable("gone")
        return real(*arguments)

    monkeypatch.setattr(source._store, "piece", piece)
    batch = source.read(10, 60)
    assert values(batch) == [b"1"]
    with pytest.raises(SourceUnavailable, match="gone"):
        source.read(10, 60)
    assert batch is not None
    assert values(setting.all(batch.offset)) == [b"2"]


def test_lost_bucket_is_refused_by_its_name() -> None:
    with running_broker() as broker:
        own = Setting(broker)
        own.put(b"1", b"2")
        source, batch = _read_some(own, 1)
        broker.kill()
        with pytest.raises(SourceUnavailable, match="is not available"):
            own.opened(batch.offset).read(1, 0)
        broker.start()
        for call in (lambda: own.opened(batch.offset).read(1, 0), own.made().check):
            with pytest.raises(SourceRefused, match=r"s3://events/.* has no such bucket"):
                call()
        broker.create_bucket()
        with pytest.raises(SourceRefused, match="was deleted after 2 of its bytes were read"):
            own.opened(batch.offset).read(1, 0)
        source.close()


def test_server_that_is_down_is_unavailable(setting: Setting) -> None:
    port, began = free_port(), time.monotonic()
    source = setting.made(endpoint=f"http://127.0.0.1:{port}")
    for call in (source.check, lambda: source.peek(None, 1, 0)):
        with pytest.raises(SourceUnavailable, match=f"{port} is not available: .*refused"):
            call()
    assert time.monotonic() - began < 20


def test_server_that_is_down_is_no_question_of_tls_whatever_the_keys(setting: Setting) -> None:
    options = {"url": "s3://certificates/certificate", "timeout": "1s"}
    source = setting.made(endpoint=f"http://127.0.0.1:{free_port()}", **options)
    with pytest.raises(SourceUnavailable, match="refused"):
        source.check()


def test_server_that_hangs_is_unavailable_in_time(setting: Setting) -> None:
    proxy = Proxy(setting.broker.port)
    proxy.freeze_after(0)
    source = setting.opened(endpoint=f"http://127.0.0.1:{proxy.port}", timeout="200ms")
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="is not available"):
        source.read(10, 0.1)
    assert time.monotonic() - began < 20
    proxy.close()


@pytest.mark.parametrize(
    ("answer", "error", "part"),
    [
        ((503, "SlowDown"), SourceUnavailable, "SlowDown"),
        ((403, "InvalidAccessKeyId"), SourceRefused, "refuses the credentials"),
        ((400, "ExpiredToken"), SourceRefused, "refuses the credentials"),
        ((403, "AccessDenied"), SourceRefused, "the right s3:ListBucket"),
        ((301, "PermanentRedirect"), SourceRefused, "correct region"),
        ((404, "NoSuchBucket"), SourceRefused, "no such bucket"),
    ],
)
def test_errors_of_servers_are_told_apart(
    setting: Setting, answer: tuple[int, str], error: type[Exception], part: str
) -> None:
    status, code = answer
    body = f"<Error><Code>{code}</Code><Message>the reason</Message></Error>"
    with answering({"GET": (status, body, {})}) as port:
        source = setting.opened(endpoint=f"http://127.0.0.1:{port}", timeout="1s")
        for call in (source.check, lambda: source.peek(None, 10, 0)):
            with pytest.raises(error, match=part) as raised:
                call()
            assert "hunter2" not in repr(raised.value) + repr(raised.value.__cause__)


def test_refused_get_names_the_object_and_the_right(tmp_path: Path, setting: Setting) -> None:
    with running_broker() as broker:
        own = Setting(broker)
        own.put(b"1", key="a")
        key, secret = _user(broker, "s3:ListBucket")
        right = {"access_key_id": key, "secret_access_key": secret}
        source = own.opened(**right)
        with pytest.raises(SourceRefused, match=r"a in s3://events.* the right s3:GetObject"):
            source.read(10, 0)
        with pytest.raises(SourceRefused, match="the right s3:GetObject"):
            own.made(**right).check()
        with pytest.raises(SourceRefused, match="refuses the credentials") as raised:
            own.opened(access_key_id=key, secret_access_key="hunter2").read(10, 0)
        assert "hunter2" not in repr(raised.value) + repr(raised.value.__cause__)


PLAIN = {"Content-Type": "text/plain"}


def _user(broker: S3Broker, right: str) -> tuple[str, str]:
    """Let the server check credentials, and create a user with one right."""
    import boto3

    arguments = {"endpoint_url": broker.url, "region_name": "us-east-1"}
    arguments |= {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    iam = boto3.client("iam", **arguments)
    iam.create_user(UserName="reader")
    allowed = {"Effect": "Allow", "Action": right, "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": allowed})
    iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=document)
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    reset = f"{broker.url}/moto-api/reset-auth"
    urllib.request.urlopen(
        urllib.request.Request(reset, data=b"0", method="POST", headers=PLAIN)
    ).close()
    return made["AccessKeyId"], made["SecretAccessKey"]


@needs("openssl")
def test_certificate_of_the_server_is_checked() -> None:
    with running(EncryptedBroker) as broker:
        url = f"https://127.0.0.1:{broker.port}"
        ca = {"ca_file": str(broker.certificate)}
        own = Setting(broker)
        with pytest.raises(SourceRefused, match="no such bucket"):
            own.made(endpoint=url, **ca).check()
        with pytest.raises(SourceRefused, match=r"cannot be reached by TLS: .*ca_file"):
            own.made(endpoint=url).check()
        with pytest.raises(SourceRefused, match=r"missing.pem cannot be read"):
            own.made(endpoint=url, ca_file="missing.pem").check()
        (broker.directory / "text.pem").write_text("no certificate")
        with pytest.raises(SourceRefused, match=r"ca_file|certificate"):
            own.made(endpoint=url, ca_file=str(broker.directory / "text.pem")).check()


def test_credentials_are_those_of_the_environment_or_none_at_all(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env")
    setting.put(b"1")
    none = {"access_key_id": None, "secret_access_key": None}
    assert values(setting.all(**none)) == [b"1"]
    with pytest.raises(SourceRefused, match="the right s3:GetObject"):
        setting.made(**none, anonymous=True).check()


def test_missing_directory_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match=r"file://.*/missing cannot be opened"):
        Directory(tmp_path).made(url=f"file://{tmp_path}/missing").check()
    assert not (tmp_path / "missing").exists()


def test_bucket_in_the_host_name_without_path_style() -> None:
    written = {"url": "s3://events/orders", "endpoint": "https://s3.example:9000/"}
    options = S3Source.Options.model_validate(written | {"path_style": False})
    config = Store(options, SourceRefused, SourceUnavailable)._config()
    assert config["endpoint"] == "https://events.s3.example:9000"
    assert config["virtual_hosted_style_request"]


def test_listing_with_other_versions_than_the_objects_is_unavailable(setting: Setting) -> None:
    """A proxy that compresses answers makes their ETags weak."""
    entry = (
        "<Contents><Key>orders/a</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
        '<ETag>"1"</ETag><Size>2</Size></Contents>'
    )
    headers = {"ETag": 'W/"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    headers |= {"Content-Range": "bytes 0-1/2"}
    body = f"<ListBucketResult>{entry}</ListBucketResult>"
    answers = {"GET": (200, body, {}), "GET /events/orders/a": (206, "1\n", headers)}
    with answering(answers) as port:
        source = setting.opened(
            url="s3://events/orders", endpoint=f"http://127.0.0.1:{port}", timeout="1s"
        )
        with pytest.raises(SourceUnavailable, match=r"a in .* another ETag than in the listing"):
            source.read(1, 60)


def test_key_that_cannot_be_used_is_refused_by_its_name(setting: Setting) -> None:
    path = f"{setting.broker.url}/{BUCKET}/{setting.name}/a//b"
    urllib.request.urlopen(urllib.request.Request(path, data=b"1", method="PUT")).close()
    with pytest.raises(SourceRefused, match=r"a//b.* rename the object"):
        setting.opened().read(1, 0)


def test_listing_without_order_is_refused(setting: Setting) -> None:
    entry = (
        "<Contents><Key>orders/{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
        "<ETag>1</ETag><Size>1</Size></Contents>"
    )
    body = f"<ListBucketResult>{entry.format('b')}{entry.format('a')}</ListBucketResult>"
    with answering({"GET": (200, body, {})}) as port:
        source = setting.opened(
            url="s3://events/orders", endpoint=f"http://127.0.0.1:{port}", timeout="1s"
        )
        with pytest.raises(SourceRefused, match="does not list keys in their order"):
            source.read(1, 0)


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"url": "events/orders"}, "scheme"),
        ({"url": "memory://"}, "scheme"),
        ({"secret_access_key": "hunter2"}, "belong together"),
        ({"anonymous": True, "access_key_id": "a", "secret_access_key": "b"}, "needs no"),
        ({"url": "file:///tmp", "endpoint": "http://127.0.0.1"}, "for s3 only"),
        ({"message": "object", "skip_lines": 1}, "skip_lines needs message: line"),
        ({"poll": "0s"}, "poll"),
    ],
)
def test_wrong_options_are_refused(written: dict[str, Any], part: str) -> None:
    refusal = refusal_of(S3Source.Options, {"url": "s3://bucket"} | written)
    assert part in refusal
    assert "hunter2" not in refusal
