"""Read and change files, each method by one system call.

The data of a node must survive a crash and a loss of power between any two changes, so the order of
the changes matters. The journal, the outbox and the small files beside them therefore use the disk
only by an object with the methods of ``Files``. A test gives them an object that also fails, that
forgets what was not synced, or that returns other bytes than were written.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ha_engine.system.fsync import fsync_directory, sync_file_system

CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
CREATE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
APPEND = os.O_WRONLY | os.O_APPEND


class File(io.FileIO):
    """A file that is open for writing, without a buffer. Each method may raise OSError."""

    def writev(self, buffers: Sequence[bytes]) -> int:
        """Write ``buffers`` one after the other, and return the number of written bytes."""
        return os.writev(self.fileno(), buffers)

    def fsync(self) -> None:
        os.fsync(self.fileno())

    def fdatasync(self) -> None:
        os.fdatasync(self.fileno())

    def evict(self) -> None:
        """Drop the file from the page cache, so that the next read returns what the disk has."""
        os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Files(Protocol):
    """Files and directories. Each method may raise OSError, and so may a read of ``reader``."""

    def reader(self, path: Path) -> io.FileIO: ...
    def open(self, path: Path, flags: int) -> File: ...
    def rename(self, old: Path, new: Path) -> None: ...
    def link(self, old: Path, new: Path) -> None: ...
    def unlink(self, path: Path, *, missing_ok: bool = False) -> None: ...
    def mkdir(self, path: Path, mode: int) -> None: ...
    def rmtree(self, path: Path) -> None: ...
    def fsync_directory(self, path: Path) -> None: ...
    def sync(self, path: Path) -> None: ...


class OsFiles:
    """The files of the operating system; only their owner may read them."""

    def reader(self, path: Path) -> io.FileIO:
        return io.FileIO(path)

    def open(self, path: Path, flags: int) -> File:
        return File(os.open(path, flags | os.O_CLOEXEC, 0o600), "wb")

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        path.unlink(missing_ok=missing_ok)

    def mkdir(self, path: Path, mode: int) -> None:
        path.mkdir(mode, exist_ok=True)

    def rmtree(self, path: Path) -> None:
        shutil.rmtree(path)

    def fsync_directory(self, path: Path) -> None:
        fsync_directory(path)

    def sync(self, path: Path) -> None:
        sync_file_system(path)


OS_FILES = OsFiles()


def read_file(path: Path, files: Files = OS_FILES) -> bytes:
    """The whole content of the file ``path``. Raises OSError."""
    with files.reader(path) as file:
        return file.readall()


def write_all(file: File, data: bytes) -> None:
    # When a disk becomes full, one call writes only a part of its data, and the next call fails.
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def replace_file(path: Path, content: Iterable[bytes], files: Files = OS_FILES) -> None:
    """Replace the file ``path`` durably by the parts of ``content``.

    A crash leaves the old file or the new file. Raises OSError.
    """
    draft = path.with_suffix(".tmp")
    with files.open(draft, CREATE) as file:
        for part in content:
            write_all(file, part)
        file.fsync()
    files.rename(draft, path)
    # Without an fsync of the directory, a loss of power may bring back the old file.
    files.fsync_directory(path.parent)


def make_directory(
    path: Path, mode: int = 0o700, files: Files = OS_FILES, *, durable: bool = True
) -> None:
    """Make the directory ``path`` and its missing parents, by default durably. Raises OSError."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        files.mkdir(one, mode)
        if durable:
            files.fsync_directory(one.parent)
