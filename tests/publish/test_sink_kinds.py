"""Each kind of sink of the engine passes the contract and has its own guarantees."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ha_engine.errors import ApplicationError, SinkRefused, SinkUnavailable
from ha_engine.formats.json_lines import json_lines
from ha_engine.formats.values import require_form
from ha_engine.plugins import SinkPlace, sink_kind
from ha_engine.publish.sinks.dead_letters import SinkDeadLetters
from ha_engine.publish.sinks.files import FilesSink
from ha_engine.publish.sinks.http import HttpSink
from ha_engine.publish.sinks.stdout import StdoutSink
from ha_engine.testing import SinkContract
from ha_engine.testing.sink_contract import batch_of, numbered
from tests.publish.http_receiver import Receiver, listening

PLACE = SinkPlace("group", "query", "sink", lambda batch, reason, rows: None)


class TestJsonFiles(SinkContract):
    kind = FilesSink

    def options(self) -> dict[str, Any]:
        return {"directory": str(self.home / "out")}

    def delivered(self) -> list[dict[str, Any]]:
        files = sorted((self.home / "out" / "query").iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def test_file_names_are_the_batch_numbers(self) -> None:
        self.opened().deliver(batch_of(7, numbered(7)))
        [file] = (self.home / "out" / "query").iterdir()
        assert file.name == "000000000007.jsonl"

    def test_file_with_other_rows_is_left_unchanged_for_a_person(self) -> None:
        """The file is of another group, or of a batch that a forced failover gave up."""
        self.opened().deliver(batch_of(1, numbered(1)))
        with pytest.raises(
            SinkRefused, match="has other rows than this batch; move that file away"
        ):
            self.opened().deliver(batch_of(1, numbered(9)))
        assert [row["id"] for row in self.delivered()] == [1000, 1001, 1002]

    def test_sink_retries_while_its_directory_cannot_be_created(self) -> None:
        (self.home / "out").write_text("in the way")
        sink = self.opened()
        with pytest.raises(SinkUnavailable, match="cannot be written"):
            sink.deliver(batch_of(1, numbered(1)))
        (self.home / "out").unlink()
        sink.deliver(batch_of(1, numbered(1)))
        assert len(self.delivered()) == 3

    def test_a_relative_directory_is_refused_before_the_query_runs(self) -> None:
        options = FilesSink.Options.model_validate(self.options() | {"directory": "out"})
        with pytest.raises(SinkRefused, match="absolute"):
            FilesSink(options, PLACE).prepare(numbered(1).schema)


class TestParquetFiles(TestJsonFiles):
    def options(self) -> dict[str, Any]:
        return super().options() | {"format": "parquet"}

    def delivered(self) -> list[dict[str, Any]]:
        files = sorted((self.home / "out" / "query").iterdir())
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def test_file_names_are_the_batch_numbers(self) -> None:
        self.opened().deliver(batch_of(7, numbered(7)))
        [file] = (self.home / "out" / "query").iterdir()
        assert file.name == "000000000007.parquet"


class TestStdout(SinkContract):
    kind = StdoutSink

    @pytest.fixture(autouse=True)
    def _printed(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.printed, self.capfd = "", capfd

    def options(self) -> dict[str, Any]:
        return {}

    def delivered(self) -> list[dict[str, Any]]:
        self.printed += self.capfd.readouterr().out
        return [json.loads(line)["row"] for line in self.printed.splitlines()]

    def test_each_line_names_its_query_and_batch(self) -> None:
        self.opened().deliver(batch_of(4, numbered(4, 1)))
        line = json.loads(self.capfd.readouterr().out)
        assert (line["query"], line["batch"]) == ("query", 4)


class TestHttp(SinkContract):
    kind = HttpSink

    @pytest.fixture(autouse=True)
    def _receiver(self) -> Iterator[None]:
        self.receiver = Receiver()
        with listening(self.receiver) as self.url:
            yield

    def options(self) -> dict[str, Any]:
        return {"url": self.url, "rows_per_request": 1000, "attempts": 3}

    def delivered(self) -> list[dict[str, Any]]:
        return self.receiver.rows

    def test_a_repeated_request_has_the_same_key(self) -> None:
        for _ in range(2):
            self.opened().deliver(batch_of(1, numbered(1)))
        (first, _), (second, _) = self.receiver.requests
        assert first == second
        assert first.startswith("group/query/sink/1/0/")
        assert len(self.receiver.rows) == 3

    def test_retry_of_a_batch_continues_at_the_failed_request(self) -> None:
        answers = iter([200, 503, 200, 200])
        self.receiver.answer = lambda rows: next(answers)
        sink, rows = self.opened(), numbered(1, 2_500)
        with pytest.raises(SinkUnavailable, match="answers 503: too odd"):
            sink.deliver(batch_of(1, rows))
        sink.deliver(batch_of(1, rows))
        keys = [key.split("/")[4] for key, _ in self.receiver.requests]
        assert keys == ["0", "1000", "1000", "2000"]
        assert len(self.receiver.rows) == 2_500

    def test_rows_refused_repeatedly_become_dead_letters_and_the_rest_is_sent(
        self,
    ) -> None:
        self.receiver.answer = lambda rows: 422 if rows[0]["id"] == 2000 else 200
        sink, rows = self.opened(), numbered(1, 2_500)
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="answers 422"):
                sink.deliver(batch_of(1, rows))
        sink.deliver(batch_of(1, rows))
        [(batch, reason, count)] = self.aside
        assert (batch, count) == (1, 1000)
        assert "422" in reason
        assert len(self.receiver.rows) == 1_500

    def test_other_rows_at_the_same_place_have_another_key(self) -> None:
        """A receiver that remembers keys must not take the new rows for those that it has."""
        self.opened().deliver(batch_of(1, numbered(1)))
        self.opened().deliver(batch_of(1, numbered(1, 5)))
        assert len({key for key, _ in self.receiver.requests}) == 2

    def test_refusals_of_one_batch_do_not_count_for_another(self) -> None:
        sink = self.opened()
        self.receiver.answer = lambda rows: 422
        for number in (1, 1, 2, 2):
            with pytest.raises(SinkUnavailable, match="answers 422"):
                sink.deliver(batch_of(number, numbered(number)))
        assert not self.aside

    def test_sink_sends_no_request_after_its_deadline(self) -> None:
        with pytest.raises(SinkUnavailable, match="the deadline passed"):
            self.opened().deliver(batch_of(1, numbered(1), seconds=0))
        assert not self.receiver.requests

    @pytest.mark.parametrize("status", [401, 403, 404, 301])
    def test_refusal_of_every_request_makes_no_dead_letter(self, status: int) -> None:
        self.receiver.answer = lambda rows: status
        sink = self.opened()
        for _ in range(4):
            with pytest.raises(SinkRefused, match=f"answers {status}"):
                sink.deliver(batch_of(1, numbered(1)))
        assert not self.aside

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
    def test_transient_refusal_is_retried_without_a_dead_letter(self, status: int) -> None:
        self.receiver.answer = lambda rows: status
        sink = self.opened()
        for _ in range(5):
            with pytest.raises(SinkUnavailable, match=f"answers {status}"):
                sink.deliver(batch_of(1, numbered(1)))
        assert not self.aside

    def test_error_message_contains_no_password_and_no_token(self) -> None:
        url = self.url.replace("http://", "http://me:hunter2@") + "?token=hunter3"
        options = HttpSink.Options.model_validate({"url": url})
        self.receiver.answer = lambda rows: 500
        with pytest.raises(SinkUnavailable) as refused:
            HttpSink(options, PLACE).deliver(batch_of(1, numbered(1)))
        assert "hunter" not in str(refused.value)
        assert "127.0.0.1" in str(refused.value)

    def test_unreachable_receiver_is_a_transient_error(self) -> None:
        options = HttpSink.Options.model_validate({"url": "http://127.0.0.1:1/rows"})
        with pytest.raises(SinkUnavailable, match="not available"):
            HttpSink(options, PLACE).deliver(batch_of(1, numbered(1)))

    def test_sink_sends_the_configured_headers(self) -> None:
        options = self.options() | {"headers": {"Authorization": "Bearer x"}}
        HttpSink(HttpSink.Options.model_validate(options), PLACE).deliver(batch_of(1, numbered(1)))
        assert self.receiver.headers[0]["Authorization"] == "Bearer x"


def test_json_has_a_form_for_every_type_of_a_query() -> None:
    moment = datetime(2013, 1, 31, 23, 59, 59, 123456, UTC)
    table = pa.table(
        {
            "n": [1, None],
            "x": [math.nan, -math.inf],
            "d": pa.array([Decimal("1.20"), None], pa.decimal128(10, 2)),
            "t": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "day": pa.array([date(2013, 1, 31), None]),
            "b": pa.array([b"\x00\xff", None]),
            "s": pa.array([{"from": moment, "x": math.nan}, None]),
            "m": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "l": [[1, None], None],
        }
    )
    first, second = (json.loads(line) for line in json_lines(table).splitlines())
    time = "2013-01-31T23:59:59.123456+00:00"
    assert first == {
        "n": 1,
        "x": "NaN",
        "d": "1.20",
        "t": time,
        "day": "2013-01-31",
        "b": "AP8=",
        "s": {"from": time, "x": "NaN"},
        "m": {"k": 1.5},
        "l": [1, None],
    }
    assert second.pop("x") == "-Infinity"
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.map_(pa.date32(), pa.int64()), pa.list_(pa.duration("s"))]
)
def test_a_type_without_a_form_is_refused_before_the_query_runs(kind: pa.DataType) -> None:
    with pytest.raises(SinkRefused, match=r"column x is .*cast it to string"):
        require_form(pa.schema({"n": pa.int64(), "x": kind}))


class Letters:
    """The dead letters of one sink, in a directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.kept = home, SinkDeadLetters(home, "query", "sink")

    def lines(self) -> list[dict[str, Any]]:
        files = (self.home / "dead_letters" / "query" / "sink").iterdir()
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_repeated_dead_letters_are_stored_once_whatever_the_reason(tmp_path: Path) -> None:
    letters, rows = Letters(tmp_path), numbered(4)
    letters.kept.put_aside(batch_of(4, rows), "answers 422, request 17", rows)
    letters.kept.put_aside(batch_of(4, rows), "answers 422, request 18", rows)
    assert [line["row"] for line in letters.lines()] == rows.to_pylist()
    assert letters.kept.rows == 3


def test_interrupted_write_of_dead_letters_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, rows = Letters(tmp_path), numbered(4)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SinkUnavailable, match="No space left"):
        letters.kept.put_aside(batch_of(4, rows), "reason", rows)
    monkeypatch.undo()
    letters.kept.put_aside(batch_of(4, rows), "reason", rows)
    assert len(letters.lines()) == 3


def test_kinds_of_the_engine_are_found_like_those_of_plugins() -> None:
    assert [sink_kind(name) for name in ("files", "http", "stdout")] == [
        FilesSink,
        HttpSink,
        StdoutSink,
    ]
    with pytest.raises(ApplicationError, match="did you mean 'files'"):
        sink_kind("file")
