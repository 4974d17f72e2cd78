"""Empty the data directory of a stopped node, so that it joins its group as a new member.

Reinit deletes the checkpoints first, then the published batches that are kept for observers, then
the outbox, then the journal. Last, reinit deletes a
downloaded snapshot that is not in use yet. Reinit deletes the journal's identity before the
journal's segments. After a crash during reinit, the next start either repairs the data directory or
refuses it. Reinit deletes the outbox before the journal, so an outbox never remains without its
journal.

Reinit keeps the configuration, and the highest epoch and version of the lease that the node has
read (RULES.md#r5). Reinit does not change the lease row. The new journal gets a new id, so the
lease row's entry for the old journal is void. The holder removes a void entry as it removes any
silent member (RULES.md#r8, RULES.md#r9).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ha_engine.config import Config
from ha_engine.errors import (
    ConfigError,
    DataDirectoryLocked,
    DiskFailed,
    JournalDamaged,
    OnlyCopy,
    UnknownJournalVersion,
)
from ha_engine.journal import identity as identities
from ha_engine.journal.identity import JournalIdentity
from ha_engine.snapshot.checkpoint_storage import WHOLE
from ha_engine.system.file_lock import NODE_LOCK, SUPERVISOR_LOCK, lock_directory
from ha_engine.system.fsync import fsync_directory
from ha_engine.system.process_group import members
from ha_engine.types import LeaseRow


@dataclass(frozen=True, slots=True)
class Part:
    """A directory whose content reinit deletes, and the size of that content."""

    name: str
    path: Path
    bytes: int


def require_this_host(config: Config, node: str) -> None:
    """Raises ConfigError if ``node`` is not the node that the configuration describes."""
    if node != config.node.id:
        raise ConfigError(
            f"this configuration is for node {config.node.id}, not for {node}; run reinit on the "
            f"host of {node}, with the configuration of {node}"
        )


@contextmanager
def stopped(config: Config) -> Iterator[None]:
    """Hold the locks of the node process and its supervisor. Raises DataDirectoryLocked if the node
    process, its supervisor or its query process runs."""
    home, locks = config.node.data_dir, []
    try:
        for name in (SUPERVISOR_LOCK, NODE_LOCK):
            locks.append(lock_directory(home, name))
        if members(str(home.resolve()), None):
            raise DataDirectoryLocked("its query process has not ended yet")
        yield
    except DataDirectoryLocked as error:
        raise DataDirectoryLocked(
            f"{config.node.id} still runs on {home}; stop it first, then run reinit again"
        ) from error
    finally:
        for lock in locks:
            os.close(lock)


def parts(config: Config) -> list[Part]:
    """The directories whose content reinit would delete, in the order of deletion."""
    home = config.node.data_dir
    found = {
        "checkpoints": config.checkpoint_dir,
        "published batches": home / "published",
        "outbox": home / "outbox",
        "journal": home / "journal",
        "restored snapshot": home / WHOLE,
    }
    return [
        Part(name, path, _size(path))
        for name, path in found.items()
        if path.is_dir() and any(path.iterdir())
    ]


def require_another_copy(config: Config, row: LeaseRow | None) -> None:
    """Raises OnlyCopy if this journal may have the only copy of its records."""
    journal, known = _identity(config.node.data_dir / "journal")
    if known and journal is None:
        return
    if row is None or (journal and journal.group_id not in (None, row.group_id)):
        raise OnlyCopy(
            f"the database has no lease row of this journal's group {config.group}, so it does "
            "not show whether another node has the records; correct database.url and group"
        )
    mine = [m for m in row.in_sync if m.node == config.node.id]
    others = [m.node for m in row.in_sync if m.node != config.node.id]
    listed = any(journal is None or m.journal_id == journal.journal_id for m in mine)
    if listed and not others:
        raise OnlyCopy(
            f"the lease row lists the journal of {config.node.id} as the only one in sync, so it "
            "may be the only copy of events that were acked; start this node and another, and wait "
            "until the other is in sync (ha-engine status)"
        )


def require_no_journal(config: Config) -> None:
    """Raises OnlyCopy if the data directory has a journal, or files that may be one."""
    directory = config.node.data_dir / "journal"
    if directory.is_dir() and any(directory.iterdir()):
        raise OnlyCopy(
            f"{directory} holds a journal, which may have records that no snapshot has: start the "
            "node; if the journal is worth nothing, run "
            f"'ha-engine reinit {config.node.id}' first"
        )


def empty(part: Part) -> None:
    """Delete the content of the directory of ``part``, durably. Raises DiskFailed."""
    try:
        (part.path / identities.FILE_NAME).unlink(missing_ok=True)
        fsync_directory(part.path)
        for child in part.path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
        fsync_directory(part.path)
    except OSError as error:
        raise DiskFailed(f"{part.path} cannot be emptied: {error.strerror}") from error


def _identity(directory: Path) -> tuple[JournalIdentity | None, bool]:
    """The identity of the journal, and whether it is known. The identity of a damaged or unreadable
    journal is unknown."""
    try:
        identity = identities.load(directory)
    except (JournalDamaged, UnknownJournalVersion, OSError):
        return None, False
    return identity, identity is not None or not any(directory.glob("*"))


def _size(directory: Path) -> int:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
