"""Let one process at a time work in a node's directory, and record its name (RULES.md#r2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ha_engine.errors import DataDirectoryLocked
from ha_engine.system.disk import disk
from ha_engine.system.files import make_directory
from ha_engine.system.fsync import boot_id

SUPERVISOR_LOCK = "supervisor.lock"
NODE_LOCK = "node.lock"
USERS_LOCK = "users.lock"
"""The name of the lock in the directory of an embedded database."""
_NAME_BYTES_MAX = 512


def lock_directory(path: Path, name: str) -> int:
    """Create the directory ``path`` and lock the file ``name`` in it.

    The lock lasts until the returned descriptor is closed.

    Raises DataDirectoryLocked if another process has the lock. Raises DiskFailed.
    """
    with disk(path):
        make_directory(path)
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
    """Create the directory ``path`` and take a shared lock on the file ``name`` in it.

    Wait while another process has an exclusive lock.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def lock_for_process(path: Path, process_id: str) -> int:
    """Lock like ``lock_directory``, and write the node process's name into the lock file.

    Raises DataDirectoryLocked and DiskFailed.
    """
    lock = lock_directory(path, NODE_LOCK)
    # If the disk is full, the lock file names no process, or an earlier process, which is dead.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{process_id} {_whereabouts(lock)}".encode(), 0)
    return lock


def earlier_process(path: Path) -> str | None:
    """The node process that locked ``path`` last, if that process is certainly dead; otherwise
    None.

    Raises DataDirectoryLocked if a process has the lock now.

    A process has the lock until it dies, so a free lock proves that the process is dead. A free
    lock proves nothing about a process on another host, or before the last boot. A free lock also
    proves nothing about a process in another copy of the directory, which has a lock of its own.
    """
    lock = lock_directory(path, NODE_LOCK)
    try:
        name, _, here = os.pread(lock, _NAME_BYTES_MAX, 0).decode(errors="replace").partition(" ")
        return name if here == _whereabouts(lock) else None
    finally:
        os.close(lock)


def holder_of(path: Path) -> int | None:
    """The pid of the process that has the lock on the file ``path``, or None if no process has it.

    This function takes no lock, so it does not disturb a process that locks the file now.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:262145 0 EOF. The device is not compared, since some
        # file systems show another device than stat(2).
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, place, *_] if place.endswith(f":{inode}"):
                return int(pid)
    return None


def _whereabouts(lock: int) -> str:
    """A text that identifies the lock file within the current boot."""
    found = os.fstat(lock)
    return f"{boot_id()} {found.st_dev} {found.st_ino}"
