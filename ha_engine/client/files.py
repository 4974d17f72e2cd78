"""A file of events as lines of NDJSON, each with its line number, and the sending of it.

Rules for CSV: the first line names the columns; an empty field is null, except in a string column;
NA is null in a number, a date or a timestamp; a quoted field holds no line break. Values are
judged by the node, as in NDJSON. Line numbers count from 1 and are exact unless a CSV file has
blank lines.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.csv as arrow_csv

from ha_engine.client.endpoints import RemoteColumn
from ha_engine.client.producer import Ack, Producer, as_line
from ha_engine.errors import ConfigError, EngineError, InvalidEvents, SequenceForgotten

FORMATS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson"}
_NO_VALUE = ("", "NA")
_CSV_CELL = re.compile(r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): ([^\n]*)")
_CSV_ROW = re.compile(r"Row #(\d+): ([^\n]*)")

Line = tuple[int, bytes]
"""Number of the line in the file, and the event as one line of JSON."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send and how. ``path`` None: standard input; ``rate`` in rows/s, 0: no limit."""

    stream: str
    path: Path | None
    urls: Sequence[str]
    form: str = "auto"
    batch_rows: int = 1_000
    producer_id: str | None = None
    rate: float = 0.0
    in_flight: int = 1
    deadline: float = 60.0

    @property
    def name(self) -> str:
        return "standard input" if self.path is None else self.path.name


@dataclass(slots=True)
class Sending:
    """What became of the file so far. ``remembered`` rows were stored by an earlier run."""

    name: str
    acked: int = 0
    remembered: int = 0
    seconds: float = 0.0
    error: str | None = None
    exit_code: int = 0
    _numbers: dict[int, list[int]] = field(default_factory=dict)
    _last: Ack | None = None

    @property
    def rows_per_second(self) -> float:
        return self.acked / self.seconds if self.seconds else 0.0

    def sentence(self) -> str:
        old = f", {self.remembered} of them by an earlier run" if self.remembered else ""
        return (
            f"{self.acked} rows of {self.name} acknowledged{old} in {self.seconds:.1f} s "
            f"({self.rows_per_second:,.0f} rows/s)"
        )

    def tree(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "acked": self.acked,
            "remembered": self.remembered,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_per_second),
            "error": self.error,
        }

    def note_sent(self, first_row: int, numbers: list[int]) -> None:
        self._numbers[first_row] = numbers

    def note_ack(self, ack: Ack) -> None:
        self._numbers.pop(ack.first_row, None)
        self.acked += ack.rows
        self.remembered += ack.rows if ack.position is None else 0
        self._last = ack

    def line_of(self, row: int) -> int | None:
        """Where in the file a row that is not acknowledged stands."""
        for first, numbers in self._numbers.items():
            if first <= row < first + len(numbers):
                return numbers[row - first]
        return None

    def require_known(self) -> None:
        """All forgotten and none compared: perhaps another file under the same id. Raises."""
        if self._last is not None and self._last.position is None:
            raise SequenceForgotten(
                "every request is older than what the nodes remember of this producer id, so "
                "nothing was compared or stored; use a producer id of its own for each file"
            )


def send_file(plan: Plan, on_progress: Callable[[Sending, int], None] | None = None) -> Sending:
    """Send all of it; what went wrong is in ``error``, one sentence, and what was acked stays.

    ``on_progress(sending, bytes read)`` is called after each request. Raises ConfigError when the
    file cannot be read at all.
    """
    sending = Sending(plan.name)
    started = time.monotonic()
    try:
        _send(plan, sending, on_progress or (lambda *_: None))
    except KeyboardInterrupt:
        sending.error, sending.exit_code = "stopped by Ctrl-C; the rest was not sent", 130
    except InvalidEvents as error:
        line = None if error.row is None else sending.line_of(error.row)
        where = plan.name if line is None else f"line {line} of {plan.name}"
        sending.error, sending.exit_code = f"{where}: {error.reason}", error.exit_code
    except EngineError as error:
        sending.error, sending.exit_code = str(error), error.exit_code
    sending.seconds = time.monotonic() - started
    return sending


def _send(plan: Plan, sending: Sending, on_progress: Callable[[Sending, int], None]) -> None:
    form = _form(plan)
    producer = Producer(
        plan.urls,
        producer_id=plan.producer_id,
        repeats=plan.producer_id is not None,
        in_flight=plan.in_flight,
        deadline=plan.deadline,
        on_ack=sending.note_ack,
    )
    with _opened(plan, form) as file, producer:
        lines = _ndjson(file) if form == "ndjson" else _csv(file, producer.columns(plan.stream))
        sent, started = 0, time.monotonic()
        while batch := list(islice(lines, plan.batch_rows)):
            sending.note_sent(sent, [number for number, _ in batch])
            producer.send_lines(plan.stream, [line for _, line in batch])
            sent += len(batch)
            sending.seconds = time.monotonic() - started
            on_progress(sending, file.tell() if plan.path is not None else 0)
            if plan.rate:
                time.sleep(max(0.0, started + sent / plan.rate - time.monotonic()))
    sending.require_known()


def _form(plan: Plan) -> str:
    if plan.form in FORMATS.values():
        return plan.form
    if plan.form != "auto":
        raise ConfigError(f"format {plan.form!r} is not known; use auto, ndjson or csv")
    if plan.path is None:
        return "ndjson"
    found = FORMATS.get(plan.path.suffix.lower())
    if found is None:
        raise ConfigError(f"the name {plan.path.name!r} does not tell the format; add --format")
    return found


def _opened(plan: Plan, form: str) -> IO[bytes]:
    if plan.path is None:
        return open(0, "rb", closefd=False)
    try:
        opened = plan.path.open("rb")
    except OSError as error:
        raise ConfigError(f"{plan.path} cannot be read: {error.strerror}") from error
    if form != "csv":
        return opened
    # Arrow reads ahead in a thread of its own. One that still reads a file of Python's when the
    # interpreter ends aborts the process.
    opened.close()
    return cast(IO[bytes], pa.OSFile(str(plan.path)))


def _ndjson(file: IO[bytes]) -> Iterator[Line]:
    # readline, since iterating a file forbids tell().
    for number, line in enumerate(iter(file.readline, b""), 1):
        if stripped := line.strip():
            yield number, stripped


def _csv(file: IO[bytes], columns: list[RemoteColumn]) -> Iterator[Line]:
    optional = [column.name for column in columns if column.type != "string"]
    try:
        reader = arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(use_threads=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={column.name: _csv_type(column) for column in columns}
            ),
        )
        names = reader.schema.names
        if len(set(names)) < len(names):
            raise InvalidEvents(f"the header names a column twice: {', '.join(names)}")
        number = 1
        for batch in reader:
            for row in batch.to_pylist():
                number += 1
                for name in optional:
                    if row.get(name) in _NO_VALUE:
                        row[name] = None
                yield number, as_line(row)
    except pa.ArrowInvalid as error:
        raise InvalidEvents(_csv_reason(str(error))) from None


def _csv_reason(said: str) -> str:
    """pyarrow counts columns from 0, and rows as lines of the file."""
    if found := _CSV_CELL.search(said):
        return f"line {found[2]}, column {int(found[1]) + 1}: {found[4]}, expected {found[3]}"
    if found := _CSV_ROW.search(said):
        return f"line {found[1]}: {found[2]}"
    return f"not readable as CSV: {said}"


def _csv_type(column: RemoteColumn) -> pa.DataType:
    """Numbers become JSON numbers; all else stays text for the node to judge."""
    match column.type:
        case "int8" | "int16" | "int32" | "int64":
            return pa.int64()
        case "float" | "double":
            return pa.float64()
        case "bool":
            return pa.bool_()
        case nested if nested.startswith(("list", "struct")):
            raise InvalidEvents(f"column {column.name!r} is nested; send NDJSON instead of CSV")
        case _:
            return pa.string()
