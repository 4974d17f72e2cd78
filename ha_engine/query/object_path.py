"""Read the objects of a checkpoint on object storage as one reads files in directories."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar


class Objects(Protocol):
    """The objects below a URL. Each method may raise ObjectStorageFailed."""

    @property
    def where(self) -> str:
        """The URL, for messages."""

    def read(self, key: str) -> bytes | None:
        """The content of an object, or None if there is no such object."""

    def put(self, key: str, content: bytes) -> None:
        """Write an object, in place of one with this key."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of each object in a folder and below it, by its key."""


@dataclass(frozen=True, slots=True)
class _Stat:
    st_size: int


class _Listing:
    """The objects below a folder, listed once, when they are first needed."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self._objects, self._folder = objects, folder

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return self._objects.sizes(self._folder)

    @cached_property
    def entries(self) -> Mapping[str, set[str]]:
        """The names in each directory."""
        found = dict[str, set[str]]()
        for key in self.sizes:
            for parent in PurePosixPath(key).parents:
                name = PurePosixPath(key).relative_to(parent).parts[0]
                found.setdefault(str(parent), set()).add(name)
        return found


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object, or a directory of objects, with those methods of Path that read a checkpoint.

    All paths that were made from one path share its listing of the storage, so make a new path to
    see later changes. ``read_bytes`` always asks the storage.
    """

    objects: Objects
    key: str
    _listing: _Listing = field(compare=False, repr=False)

    @classmethod
    def of(cls, objects: Objects, key: str) -> ObjectPath:
        return cls(objects, key, _Listing(objects, key))

    def __str__(self) -> str:
        return f"{self.objects.where}/{self.key}"

    def __truediv__(self, name: str | PurePosixPath) -> ObjectPath:
        return ObjectPath(self.objects, f"{self.key}/{name}", self._listing)

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.objects, str(PurePosixPath(self.key).parent), self._listing)

    def relative_to(self, other: ObjectPath) -> PurePosixPath:
        return PurePosixPath(self.key).relative_to(other.key)

    def is_dir(self) -> bool:
        return self.key in self._listing.entries

    def iterdir(self) -> Iterator[ObjectPath]:
        return (self / name for name in sorted(self._listing.entries.get(self.key, ())))

    def walk(self) -> Iterator[tuple[ObjectPath, list[str], list[str]]]:
        """Yield each directory from this one down, with the names of directories and objects."""
        if not self.is_dir():
            return
        directories = [one for one in self.iterdir() if one.is_dir()]
        files = [one.name for one in self.iterdir() if one.key in self._listing.sizes]
        yield self, [one.name for one in directories], files
        for one in directories:
            yield from one.walk()

    def stat(self) -> _Stat:
        try:
            return _Stat(self._listing.sizes[self.key])
        except KeyError:
            raise FileNotFoundError(2, "there is no such object", str(self)) from None

    def read_bytes(self) -> bytes:
        if (content := self.objects.read(self.key)) is None:
            raise FileNotFoundError(2, "there is no such object", str(self))
        return content

    def write_bytes(self, content: bytes) -> None:
        self.objects.put(self.key, content)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.read_bytes())

    def absolute(self) -> ObjectPath:
        return self

    def as_uri(self) -> str:
        return str(self)


CheckpointPath = Path | ObjectPath
AnyPath = TypeVar("AnyPath", Path, ObjectPath)


def listed_again(path: CheckpointPath) -> CheckpointPath:
    """The same path, which sees later changes even if its objects were listed before."""
    return ObjectPath.of(path.objects, path.key) if isinstance(path, ObjectPath) else path
