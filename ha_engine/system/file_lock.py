"""Who works in a node's directory: one process at a time, and which one it was (RULES.md#r2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ha_engine.errors import DataDirectoryLocked
from ha_engine.system.fsync import boot_id

SUPERVISOR_LOCK = "supervisor.lock"
NODE_LOCK = "node.lock"
USERS_LOCK = "users.lock"
"""In the directory of an embedded database."""
_NAME_BYTES_MAX = 512


def lock_directory(path: Path, name: str) -> int:
    """Makes ``path`` and locks ``name`` in it; the lock lasts until the descriptor is closed.

    Raises DataDirectoryLocked when another process has it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise DataDirectoryLocked(
            f"{path} is in use by another node; stop it, or give this node a data_dir of its own"
        ) from error
    return lock


def share_directory(path: Path, name: str) -> int:
    """Makes ``path`` and locks ``name`` in it beside others; waits for who has it alone."""
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def lock_for_process(path: Path, process_id: str) -> int:
    """As ``lock_directory``, for a node process, whose name stays there when it is dead."""
    lock = lock_directory(path, NODE_LOCK)
    # Where the disk is full, what is left names a process that is dead as well, or nobody.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{process_id} {_whereabouts(lock)}".encode(), 0)
    return lock


def earlier_process(path: Path) -> str | None:
    """The node process that had ``path`` last, if it is certainly dead; None if nobody knows.

    Raises DataDirectoryLocked when one has it now.

    It had the lock until it died, and the lock is free. That proves nothing of a process on another
    host, or before this one's kernel started, nor of one that has the original of a copy: each of
    them had a lock of its own.
    """
    lock = lock_directory(path, NODE_LOCK)
    try:
        name, _, here = os.pread(lock, _NAME_BYTES_MAX, 0).decode(errors="replace").partition(" ")
        return name if here == _whereabouts(lock) else None
    finally:
        os.close(lock)


def _whereabouts(lock: int) -> str:
    """Of one file below one kernel."""
    found = os.fstat(lock)
    return f"{boot_id()} {found.st_dev} {found.st_ino}"
