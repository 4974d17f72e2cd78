"""The checkpoint of one query: the files that Spark writes, with the state of the stand-in.

As with Spark, each file is written once and without an fsync. A line break ends it, in place of
Spark's checksums, so that a torn file is noticed. Batch n of the checkpoint has its mark in
``offsets/n``, the change of the state in version n + 1 of the state, and ``commits/n`` when it is
done. Each SNAPSHOT_EVERY-th version is also written as a whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ha_engine.query.checkpoint_files import last_finished
from ha_engine.system.disk import disk
from ha_engine.system.files import CREATE, Files, make_directory, read_file, write_all
from ha_engine.system.fsync import boot_id
from tests.dst.disk import SimulatedDisk

SNAPSHOT_EVERY, VERSIONS_KEPT = 4, 12
STATE = "state/0/0"


class State(NamedTuple):
    """The state after the batch of mark ``number``, which ends at the sequence ``through``: the
    ``total`` of events until then."""

    number: int
    through: int
    total: int


class CheckpointDamaged(Exception):
    """A file of the checkpoint is missing or cannot be read."""


class Checkpoint:
    """The checkpoint in the directory ``place``; ``begins`` is the state before its first batch."""

    def __init__(self, place: Path, begins: State, files: Files) -> None:
        self._place, self._files = place, files
        self._batch, self.state = self._load(begins)
        if not (place / "metadata").exists():
            self._write("metadata", {"id": "stand-in"})

    def plan(self, number: int, through: int) -> None:
        """Write down the end of the next batch, before it runs."""
        self._write(f"offsets/{self._batch}", {"mark": number, "through": through}, "v1\n{}\n")

    def keep_state(self, events: int) -> None:
        """Write the state after the next batch, which has so many events."""
        version = self._batch + 1
        total = self.state.total + events
        self._write(f"{STATE}/{version}.delta", events)
        if version % SNAPSHOT_EVERY == 0:
            self._write(f"{STATE}/{version}.snapshot", total)

    def end(self, after: State) -> None:
        """Write down the end of the next batch, after which the state is ``after``."""
        self._write(f"commits/{self._batch}", {}, "v1\n")
        self._batch, self.state = self._batch + 1, after
        self._clean_up()

    def _load(self, begins: State) -> tuple[int, State]:
        """The number of the next batch, and the state before it. Raises CheckpointDamaged."""
        last = last_finished(self._place)
        if last is None:
            return 0, begins
        try:
            offset = self._read(f"offsets/{last}", heading_lines=2)
            return last + 1, State(offset["mark"], offset["through"], self._total(last + 1, begins))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{self._place.name}: {error!r}") from error

    def _total(self, version: int, begins: State) -> int:
        events = 0
        for at in range(version, 0, -1):
            if (self._place / f"{STATE}/{at}.snapshot").exists():
                return self._read(f"{STATE}/{at}.snapshot") + events
            events += self._read(f"{STATE}/{at}.delta")
        return begins.total + events

    def _clean_up(self) -> None:
        """Delete the versions that are too old, as Spark does."""
        oldest = (self._batch - VERSIONS_KEPT) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
        for version in range(max(1, oldest - SNAPSHOT_EVERY), oldest):
            for name in (f"{STATE}/{version}.delta", f"{STATE}/{version}.snapshot"):
                self._delete(name)
            for log in ("offsets", "commits"):
                self._delete(f"{log}/{version - 2}")

    def _delete(self, name: str) -> None:
        path = self._place / name
        if path.exists():
            with disk(path):
                self._files.unlink(path)

    def _read(self, name: str, heading_lines: int = 0) -> Any:
        text = read_file(self._place / name, self._files).decode()
        if not text.endswith("\n"):
            raise ValueError(f"{name} is torn")
        return json.loads("\n".join(text.splitlines()[heading_lines:]))

    def _write(self, name: str, content: object, heading: str = "") -> None:
        path = self._place / name
        draft = path.with_name(f".{path.name}.tmp")
        with disk(path):
            make_directory(path.parent, files=self._files, durable=False)
            with self._files.open(draft, CREATE) as file:
                write_all(file, f"{heading}{json.dumps(content)}\n".encode())
            self._files.rename(draft, path)


def reboot(home: Path, disk: SimulatedDisk, boot: str) -> None:
    """Let the checkpoints on a disk be of an earlier boot, since all hosts share one boot id."""
    for path in home.glob("checkpoints/**/ha_engine.*"):
        content = disk.content(path)
        assert content is not None
        content.durable[:] = content.durable.replace(boot_id().encode(), boot.encode())
        path.write_bytes(content.durable)
