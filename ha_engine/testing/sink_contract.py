"""The tests that every kind of sink must pass. Inherit the tests in a pytest module:

class TestMySink(SinkContract):
    kind = MySink

    def options(self) -> dict[str, Any]:
        return {"directory": str(self.home)}

    def delivered(self) -> list[dict[str, Any]]:
        return the rows at the destination now

The rows of the tests have the columns ``id`` (a number) and ``text``. A sink of messages gets each
row as a message in JSON. A sink whose guarantee begins
with "at least once" may deliver some rows twice.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from ha_engine.plugins import Messages, OutputBatch, SinkPlace, SinkPlugin, require_fit

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
CALL_SECONDS = 10.0


def batch_of(
    number: int, rows: pa.Table, seconds: float = CALL_SECONDS, sink: str = "sink"
) -> OutputBatch:
    """A batch as the engine passes it to ``deliver``, which may take ``seconds``. A sink of
    messages gets each row as a message in JSON."""
    until = time.monotonic() + seconds
    return OutputBatch(
        number,
        rows.num_rows,
        f"group/query/{sink}/{number}",
        lambda: rows,
        lambda: until - time.monotonic(),
        lambda: Messages([json.dumps(row).encode() for row in rows.to_pylist()]),
    )


def numbered(number: int, rows: int = 3) -> pa.Table:
    """Rows for batch ``number`` that no other batch has."""
    ids = [number * 1000 + row for row in range(rows)]
    texts = [f'row {row}, "quoted"\nand more é' for row in ids]
    return pa.table({"id": ids, "text": texts}, schema=SCHEMA)


def refusal_of(options: type[BaseModel], written: dict[str, Any]) -> str:
    try:
        options.model_validate(written)
    except ValidationError as error:
        return str(error)
    return ""


class SinkContract:
    """The tests of a kind of sink. ``home`` is an empty directory for one test."""

    kind: ClassVar[type[SinkPlugin]]
    home: Path
    aside: list[tuple[int, str, int]]

    def options(self) -> dict[str, Any]:
        """The sink's options as in an application file, without name and type."""
        raise NotImplementedError

    def delivered(self) -> list[dict[str, Any]]:
        """Return every row that is at the destination now, with ``id`` and ``text``."""
        raise NotImplementedError

    def opened(self) -> SinkPlugin:
        """Create an instance of the sink, as another node or a new process would."""

        def put_aside(batch: OutputBatch, reason: str, rows: pa.Table) -> None:
            self.aside.append((batch.number, reason, rows.num_rows))

        place = SinkPlace("group", "query", "sink", put_aside)
        return self.kind(self.kind.Options.model_validate(self.options()), place)

    def setup_method(self, method: Callable[..., None]) -> None:
        self.aside, self.home = [], Path(tempfile.mkdtemp(prefix="sink-contract-"))

    def teardown_method(self, method: Callable[..., None]) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    # -- the contract ------------------------------------------------------------------------------

    def test_it_has_what_the_engine_calls(self) -> None:
        require_fit(self.kind)

    def test_it_refuses_a_key_that_it_does_not_know(self) -> None:
        refusal = refusal_of(self.kind.Options, self.options() | {"no_such_key": 1})
        assert "no_such_key" in refusal, "Options accepts an unknown key; set extra='forbid'"

    def test_a_batch_is_there_when_deliver_returns(self) -> None:
        sink = self._prepared()
        sink.deliver(batch_of(1, numbered(1)))
        self._require(1)

    def test_batch_follows_batch(self) -> None:
        sink = self._prepared()
        for number in (1, 2, 3):
            sink.deliver(batch_of(number, numbered(number)))
        self._require(1, 2, 3)

    def test_the_second_delivery_of_a_batch_is_harmless(self) -> None:
        """The second delivery may come from the next active, with another instance of the sink."""
        self._prepared().deliver(batch_of(1, numbered(1)))
        other = self._prepared()
        other.deliver(batch_of(1, numbered(1)))
        other.deliver(batch_of(2, numbered(2)))
        self._require(1, 2)

    def test_a_closed_sink_delivers_again(self) -> None:
        sink = self._prepared()
        sink.deliver(batch_of(1, numbered(1)))
        sink.close()
        sink.close()
        sink.deliver(batch_of(2, numbered(2)))
        self._require(1, 2)

    def test_a_large_batch_is_whole(self) -> None:
        sink, rows = self._prepared(), numbered(1, 2_500)
        sink.deliver(batch_of(1, rows))
        assert self._found() == self._expected(rows)

    def _prepared(self) -> SinkPlugin:
        sink = self.opened()
        sink.prepare(SCHEMA)
        return sink

    def _require(self, *numbers: int) -> None:
        expected = pa.concat_tables([numbered(number) for number in numbers])
        assert self._found() == self._expected(expected)
        assert not self.aside

    def _found(self) -> list[tuple[Any, ...]]:
        found = [(row["id"], row["text"]) for row in self.delivered()]
        once = sorted(set(found))
        if not self.kind.guarantee.startswith("at least once"):
            assert len(once) == len(found), "rows are there twice"
        return once

    @staticmethod
    def _expected(rows: pa.Table) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in rows.to_pylist())
