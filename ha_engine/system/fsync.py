"""Make files and directory entries durable, and read the kernel's boot id."""

from __future__ import annotations

import ctypes
import os
import uuid
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


def boot_id() -> str:
    """The kernel's boot id, which changes at each start of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def fsync_directory(directory: Path) -> None:
    """Make created, renamed and removed entries of ``directory`` durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: Path) -> None:
    """Make everything on the file system of ``path`` durable. Raises OSError.

    ``os.sync`` returns no error, even if the data of a file is lost.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Make ``path`` appear with all of ``content`` or not at all, durably.

    Raises OSError, and without ``replace`` FileExistsError, for which the file system needs hard
    links."""
    # The draft has a unique name, since another node may write the same file in a shared directory.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.rename(path)
        else:
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    fsync_directory(path.parent)
