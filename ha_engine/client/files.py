"""Send a file of events, and report progress and result. The module ``sources`` reads the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ha_engine.client.producer import Ack, Producer
from ha_engine.client.sources import open_source
from ha_engine.errors import EngineError, InvalidEvents, SequenceForgotten


@dataclass(frozen=True, slots=True)
class Plan:
    """The file to send, and the settings for sending it.

    A ``path`` of None means standard input. ``rate`` is a limit in rows per second, and 0 means no
    limit.
    """

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
    """The progress and the result of sending one file.

    ``remembered`` is the number of acked rows that an earlier run had stored. ``unit`` is what
    numbers of places in the file count: ``line`` or ``row``.
    """

    name: str
    acked: int = 0
    remembered: int = 0
    seconds: float = 0.0
    error: str | None = None
    exit_code: int = 0
    unit: str = "line"
    _numbers: dict[int, Sequence[int]] = field(default_factory=dict)
    _last: Ack | None = None

    @property
    def rows_per_second(self) -> float:
        return self.acked / self.seconds if self.seconds else 0.0

    def sentence(self) -> str:
        old = f", {self.remembered} of them in an earlier run" if self.remembered else ""
        return (
            f"{self.acked} rows of {self.name} acknowledged{old} in {self.seconds:.1f} s "
            f"({self.rows_per_second:,.0f} rows/s)"
        )

    def tree(self) -> dict[str, Any]:
        """The result as plain values, for the option ``--json``."""
        return {
            "acked": self.acked,
            "remembered": self.remembered,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows_per_second),
            "error": self.error,
        }

    def note_sent(self, first_row: int, numbers: Sequence[int]) -> None:
        self._numbers[first_row] = numbers

    def note_ack(self, ack: Ack) -> None:
        self._numbers.pop(ack.first_row, None)
        self.acked += ack.rows
        self.remembered += ack.rows if ack.position is None else 0
        self._last = ack

    def number_of(self, row: int) -> int | None:
        """The number of the line or row in the file that contains ``row``, a row that is not
        acked."""
        for first, numbers in self._numbers.items():
            if first <= row < first + len(numbers):
                return numbers[row - first]
        return None

    def require_known(self) -> None:
        """Raise SequenceForgotten if the nodes remember none of the requests.

        The nodes cannot compare a forgotten request, so the file may be a new one under an old
        producer id.
        """
        if self._last is not None and self._last.position is None:
            raise SequenceForgotten(
                "every request is older than those that the nodes remember of this producer id, so "
                "the nodes stored nothing; use a different producer id for each file"
            )


def send_file(plan: Plan, on_progress: Callable[[Sending, int], None] | None = None) -> Sending:
    """Send the whole file. After a failure, the result's ``error`` says why, and acked rows stay
    stored.

    ``on_progress`` is called after each request, with the progress and the number of bytes read
    from the file.
    """
    sending = Sending(plan.name)
    started = time.monotonic()
    try:
        _send(plan, sending, on_progress or (lambda *_: None))
    except KeyboardInterrupt:
        sending.error, sending.exit_code = (
            "stopped by Ctrl-C; the rest of the file was not sent",
            130,
        )
    except InvalidEvents as error:
        number = None if error.row is None else sending.number_of(error.row)
        where = plan.name if number is None else f"{sending.unit} {number} of {plan.name}"
        sending.error, sending.exit_code = f"{where}: {error.reason}", error.exit_code
    except EngineError as error:
        sending.error, sending.exit_code = str(error), error.exit_code
    sending.seconds = time.monotonic() - started
    return sending


def _send(plan: Plan, sending: Sending, on_progress: Callable[[Sending, int], None]) -> None:
    with closing(open_source(plan.path, plan.form)) as source, _producer(plan, sending) as producer:
        sending.unit = source.unit
        sent, started = 0, time.monotonic()
        columns = partial(producer.columns, plan.stream)
        for numbers, payload in source.parts(plan.batch_rows, columns):
            sending.note_sent(sent, numbers)
            producer.send_payload(plan.stream, payload)
            sent += payload.rows
            sending.seconds = time.monotonic() - started
            on_progress(sending, source.tell())
            if plan.rate:
                time.sleep(max(0.0, started + sent / plan.rate - time.monotonic()))
    sending.require_known()


def _producer(plan: Plan, sending: Sending) -> Producer:
    return Producer(
        plan.urls,
        producer_id=plan.producer_id,
        repeats=plan.producer_id is not None,
        in_flight=plan.in_flight,
        deadline=plan.deadline,
        on_ack=sending.note_ack,
    )
