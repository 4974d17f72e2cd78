"""A disk that fails and forgets: the second implementation of ``ha_engine.system.files.Files``.

The files are real, below a directory of the host, so that the engine reads them with its own code.
The disk notes each change, and knows what a loss of power would leave:

- of a file, the content at its last fsync, and some of the later writes;
- of a directory, the entries at its last fsync, and some of the later changes of entries.

POSIX promises no more. Changes of entries, and writes of one file, survive in their order, as on
ext4 and XFS. With ``reorders``, a later change may survive and an earlier one be lost.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from typing import Any

from ha_engine.system.files import OS_FILES, File, OsFiles

SECTOR_BYTES = 512
SLOW_SECONDS = 5.0


class Crashed(BaseException):
    """The process is dead: its thread does nothing more."""


class Hung(BaseException):
    """The call in a thread never returns."""


@dataclass(eq=False)
class Content:
    """A file without its name. ``pending`` are the writes since the last fsync: an offset and
    bytes, or a new size."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def settle(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending.clear()

    def lose_end(self, random: Random) -> None:
        """Keep the first pending writes, and perhaps a part of the next, or its length in zeros."""
        kept = random.randrange(len(self.pending) + 1)
        for change in self.pending[:kept]:
            _apply(self.durable, *change)
        for offset, data in self.pending[kept : kept + 1]:
            if data is not None:
                _apply(self.durable, offset, _torn(offset, data, random))
        self.pending.clear()

    def lose_sectors(self, random: Random) -> None:
        """Keep any sectors of the pending writes; a lost sector before a kept one has zeros."""
        for offset, data in self.pending:
            if data is None:
                if random.random() < 0.5:
                    _apply(self.durable, offset, None)
                continue
            begin = offset
            while begin < offset + len(data):
                end = min((begin // SECTOR_BYTES + 1) * SECTOR_BYTES, offset + len(data))
                if random.random() < 0.5:
                    _apply(self.durable, begin, data[begin - offset : end - offset])
                begin = end
        self.pending.clear()


def _torn(offset: int, data: bytes, random: Random) -> bytes:
    cut = random.randrange(len(data) + 1)
    if random.random() < 0.7:
        return data[:cut]
    sector_end = (offset + cut) // SECTOR_BYTES * SECTOR_BYTES - offset
    return data[: max(0, sector_end)].ljust(len(data), b"\0")


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


@dataclass(eq=False)
class Directory:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = Content | Directory
Assignment = tuple[Directory, str, Node | None]
Change = list[Assignment]
"""One system call that changes entries; a rename changes two."""


class SimulatedDisk:
    """The disk of one host, below the directory ``root``, which survives every fault.

    ``step`` is called before each change, with its name and path; it may raise OSError or Crashed.
    """

    def __init__(self, root: Path, random: Random) -> None:
        self.root, self.random = root.resolve(), random
        self.root.mkdir(parents=True)
        self.prefix, self._depth = len(str(self.root)) + 1, len(self.root.parts)
        self.reorders = self.full = False
        # Directories with a file system of their own.
        self.mounts: tuple[Path, ...] = ()
        # Whether a lost write may lie before one that survived.
        self.has_holes = False
        self.counts: Counter[str] = Counter()
        self._tree = Directory()
        self._changes: list[Change] = []

    # -- what a process does -----------------------------------------------------------------------

    def directory(self, path: Path) -> Directory:
        node: Node = self._tree
        for part in path.parts[self._depth :]:
            assert isinstance(node, Directory)
            node = node.entries[part]
        assert isinstance(node, Directory)
        return node

    def content(self, path: Path) -> Content | None:
        node = self.directory(path.parent).entries.get(path.name)
        assert not isinstance(node, Directory)
        return node

    def change(self, *changes: tuple[Path, Node | None]) -> None:
        noted: Change = []
        for path, node in changes:
            directory = self.directory(path.parent)
            noted.append((directory, path.name, node))
            _assign(directory.entries, path.name, node)
        self._changes.append(noted)

    def settle_entries(self, path: Path) -> None:
        """Make the changes of a directory durable; a rename out of it or into it as a whole."""
        directory = self.directory(path)
        self._settle(
            [change for change in self._changes if any(one[0] is directory for one in change)]
        )

    def _settle(self, changes: list[Change]) -> None:
        self._changes = [change for change in self._changes if change not in changes]
        for change in changes:
            _carry_out(change)

    def settle_all(self, path: Path) -> None:
        """Make everything durable that is on the file system of ``path``."""
        mounted = self._mounted()
        place = mounted.get(id(self.directory(path)))
        for content in _contents(self._tree):
            if mounted.get(id(content)) == place:
                content.settle()
        self._settle([one for one in self._changes if mounted.get(id(one[0][0])) == place])

    def _mounted(self) -> dict[int, Path]:
        """The mount that each node is in, by its id, except for nodes in no mount."""
        tops = [(mount, self.directory(mount)) for mount in self.mounts]
        return {id(one): mount for mount, top in tops for one in (top, *_nodes(top, set()))}

    def lose_all_writes(self) -> None:
        for content in _contents(self._tree):
            self.lose_writes(content)

    def evict(self, path: Path, content: Content) -> None:
        """Let the next read return what the disk has, where a failed fsync lost a part."""
        if not content.pending:
            path.write_bytes(content.durable)

    # -- faults ------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Forget what no fsync made durable, or a part of it."""
        self.counts["power losses"] += 1
        mounted = self._mounted()
        for place in (None, *self.mounts):
            self._lose([one for one in self._changes if mounted.get(id(one[0][0])) == place])
        self._changes = []
        for content in _contents(self._tree):
            self.counts["files with lost writes"] += bool(content.pending)
            self.lose_writes(content)
        self._begin_again()

    def _lose(self, changes: list[Change]) -> None:
        if self.reorders:
            kept = [change for change in changes if self.random.random() < 0.5]
        else:
            kept = changes[: self.random.randrange(len(changes) + 1)]
        lost = len(changes) - len(kept)
        self.has_holes = self.has_holes or (self.reorders and lost > 0)
        self.counts["changes of entries lost"] += lost
        for change in kept:
            _carry_out(change)

    def lose_writes(self, content: Content) -> None:
        if self.reorders and content.pending:
            self.has_holes = True
            content.lose_sectors(self.random)
        else:
            content.lose_end(self.random)

    def flip(self, path: Path, offset: int, bit: int) -> None:
        """Change one bit of a file at rest."""
        content = self.content(path)
        assert content is not None
        assert not content.pending, f"{path.name} is not durable"
        content.durable[offset] ^= 1 << bit
        path.write_bytes(content.durable)
        self.counts["flips"] += 1

    def image(self) -> object:
        """A copy of what a loss of power would leave at the least, as of a VM's image."""
        return _copied(self._tree)

    def go_back(self, image: object) -> None:
        """Have the content of an earlier ``image``, as after a restored backup."""
        assert isinstance(image, Directory)
        self._tree, self._changes = _copied(image), []
        self._begin_again()

    def _begin_again(self) -> None:
        """Make the real files equal to the durable content."""
        for child in self.root.iterdir():
            OsFiles().rmtree(child) if child.is_dir() else child.unlink()
        self._write_out(self._tree, self.root)

    def _write_out(self, directory: Directory, path: Path) -> None:
        directory.entries = dict(directory.durable)
        for name, node in directory.durable.items():
            if isinstance(node, Directory):
                (path / name).mkdir(mode=0o700)
                self._write_out(node, path / name)
            else:
                (path / name).write_bytes(node.durable)


def _assign(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _carry_out(change: Change) -> None:
    for directory, name, node in change:
        _assign(directory.durable, name, node)


def _nodes(directory: Directory, seen: set[int]) -> Iterator[Node]:
    """Each node below ``directory`` once, whether its name is durable, or live, or both."""
    for node in (*directory.durable.values(), *directory.entries.values()):
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Directory):
            yield from _nodes(node, seen)


def _contents(directory: Directory) -> Iterator[Content]:
    return (node for node in _nodes(directory, set()) if isinstance(node, Content))


def _copied(directory: Directory) -> Directory:
    copy = Directory()
    for name, node in directory.durable.items():
        copy.durable[name] = (
            _copied(node) if isinstance(node, Directory) else Content(bytearray(node.durable))
        )
    return copy


class SimulatedFiles:
    """The disk for one process, until the process is dead.

    The process dies before its ``crash_in``-th change from now, the ``fail_in``-th change fails,
    and the ``hang_in``-th never returns. Where ``fails_on`` names changes, only those fail or hang.
    The ``slow_in``-th change takes ``SLOW_SECONDS``, and each fsync of a file ``sync_seconds``,
    which ``take_delay`` returns later. The ``unreadable_in``-th read fails, and the
    ``misread_in``-th returns one flipped bit.
    """

    def __init__(self, disk: SimulatedDisk, died: Callable[[], None] = lambda: None) -> None:
        self.disk, self._died = disk, died
        self.dead = False
        self.plan_no_fault()
        self._delay = self.sync_seconds = 0.0
        self.fails_on: frozenset[str] = frozenset()
        self.steps = 0
        self.trace: list[str] = []

    def step(self, action: str, path: Path) -> None:
        """Fail, or die, before the change ``action``."""
        if self.dead:
            raise Crashed
        self.steps += 1
        self.trace.append(f"{action} {str(path)[self.disk.prefix :]}")
        if self.crash_in == 1:
            self.disk.counts[f"crashes before {action}"] += 1
            self.kill()
            raise Crashed
        self.crash_in = max(0, self.crash_in - 1)
        if self.slow_in == 1:
            self._delay += SLOW_SECONDS
        self.slow_in = max(0, self.slow_in - 1)
        if self.fails_on and action not in self.fails_on:
            return
        if self.hang_in == 1:
            self.trace.append("  hangs")
            self.disk.counts[f"hangs of {action}"] += 1
            raise Hung
        self.hang_in = max(0, self.hang_in - 1)
        if self.fail_in == 1:
            self.fail_in = 0
            self.fired.add("failed")
            self.trace.append("  fails")
            self.disk.counts[f"failures of {action}"] += 1
            raise OSError(EIO, os.strerror(EIO), str(path))
        self.fail_in = max(0, self.fail_in - 1)

    def read(self, data: bytes, path: Path) -> bytes:
        """Return what a read of ``data`` gives."""
        if self.dead:
            raise Crashed
        if not data:
            return data
        if self.unreadable_in == 1:
            self.unreadable_in = 0
            self._note_read("unreadable", path)
            raise OSError(EIO, os.strerror(EIO), str(path))
        self.unreadable_in = max(0, self.unreadable_in - 1)
        if self.misread_in == 1:
            self._note_read("misread", path)
            place = self.disk.random.randrange(len(data))
            bit = 1 << self.disk.random.randrange(8)
            data = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        self.misread_in = max(0, self.misread_in - 1)
        return data

    def _note_read(self, what: str, path: Path) -> None:
        self.trace.append(f"  {what}: {path.relative_to(self.disk.root)}")
        self.disk.counts[f"{what}: {path.suffix}"] += 1
        self.fired.add(what)

    def plan_no_fault(self) -> None:
        self.crash_in = self.fail_in = self.hang_in = self.slow_in = 0
        self.unreadable_in = self.misread_in = 0
        # The kinds of faults that happened since then: "failed", "unreadable" and "misread".
        self.fired = set[str]()

    def be_slow(self) -> None:
        self._delay += self.sync_seconds

    def take_delay(self) -> float:
        """How long the changes took since the last question."""
        delay, self._delay = self._delay, 0.0
        return delay

    def kill(self) -> None:
        if not self.dead:
            self.dead = True
            self.trace.append("killed")
            self._died()

    # -- Files -------------------------------------------------------------------------------------

    def reader(self, path: Path) -> io.FileIO:
        if self.dead:
            raise Crashed
        file = SimulatedReader(path)
        file.begin(self, path)
        return file

    def open(self, path: Path, flags: int) -> File:
        self.step("open", path)
        disk, content = self.disk, self.disk.content(path)
        if content is None and flags & os.O_CREAT:
            self._need_space(path)
            content = Content()
            disk.change((path, content))
        file = SimulatedFile(os.open(path, flags | os.O_CLOEXEC, 0o600), "wb")
        assert content is not None
        if flags & os.O_TRUNC and (content.durable or content.pending):
            content.pending.append((0, None))
        file.begin(self, path, content, appends=bool(flags & os.O_APPEND))
        return file

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", new)
        OS_FILES.rename(old, new)
        node = self.disk.directory(old.parent).entries[old.name]
        self.disk.change((old, None), (new, node))

    def link(self, old: Path, new: Path) -> None:
        self.step("link", new)
        self._need_space(new)
        if not old.is_relative_to(self.disk.root):
            data = old.read_bytes()
            new.write_bytes(data)
            self.disk.change((new, Content(pending=[(0, data)])))
            return
        OS_FILES.link(old, new)
        self.disk.change((new, self.disk.content(old)))

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self.step("unlink", path)
        if missing_ok and not path.exists():
            return
        OS_FILES.unlink(path)
        self.disk.change((path, None))

    def mkdir(self, path: Path, mode: int) -> None:
        self.step("mkdir", path)
        self._need_space(path)
        if not path.exists():
            OS_FILES.mkdir(path, mode)
            self.disk.change((path, Directory()))

    def rmtree(self, path: Path) -> None:
        for child in sorted(path.iterdir()):
            if child.is_dir():
                self.rmtree(child)
            else:
                self.unlink(child)
        self.step("rmdir", path)
        shutil.rmtree(path)
        self.disk.change((path, None))

    def fsync_directory(self, path: Path) -> None:
        self.step("fsync", path)
        self.disk.settle_entries(path)

    def sync(self, path: Path) -> None:
        try:
            self.step("sync", path)
        except OSError:
            self.disk.lose_all_writes()
            raise
        self.disk.settle_all(path)

    def _need_space(self, path: Path) -> None:
        if self.disk.full:
            raise self.no_space(path)

    def no_space(self, path: Path) -> OSError:
        self.disk.counts["writes to a full disk"] += 1
        self.fired.add("failed")
        return OSError(ENOSPC, os.strerror(ENOSPC), str(path))


class SimulatedReader(io.FileIO):
    """A file that is open for reading by a process of the simulation."""

    def begin(self, files: SimulatedFiles, path: Path) -> None:
        self._files, self._path = files, path

    def read(self, size: int | None = -1) -> bytes:
        return self._files.read(super().read(size), self._path)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class SimulatedFile(File):
    """A file that is open for writing by a process of the simulation."""

    def begin(self, files: SimulatedFiles, path: Path, content: Content, *, appends: bool) -> None:
        self._files, self._path, self._content, self._appends = files, path, content, appends

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self.writev([data])

    def writev(self, buffers: Sequence[bytes]) -> int:
        self._files.step("write", self._path)
        data, disk = b"".join(buffers), self._files.disk
        if disk.full:
            data = data[: disk.random.randrange(len(data))]
            if not data:
                raise self._files.no_space(self._path)
        offset = os.fstat(self.fileno()).st_size if self._appends else self.tell()
        written = super().writev([data])
        self._content.pending.append((offset, data))
        return written

    def truncate(self, size: int | None = None) -> int:
        self._files.step("truncate", self._path)
        assert size is not None
        super().truncate(size)
        self._content.pending.append((size, None))
        return size

    def fsync(self) -> None:
        self._sync("fsync")

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def _sync(self, action: str) -> None:
        self._files.be_slow()
        try:
            self._files.step(action, self._path)
        except OSError:
            # The kernel marks the pages as clean, so a second fsync would succeed without them.
            self._files.disk.lose_writes(self._content)
            raise
        self._content.settle()

    def evict(self) -> None:
        self._files.disk.evict(self._path, self._content)
