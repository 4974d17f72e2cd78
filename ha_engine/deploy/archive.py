"""The archive of applications: a ZIP file with their YAML files and the files that belong to them.

The files are placed as ``ha_engine.query.layout`` says.

The id of an archive depends only on the names and contents of its files, so that two hosts make the
same id from the same files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ha_engine.errors import ApplicationError
from ha_engine.formats.messages import FILES
from ha_engine.query.application import PythonFunction, StreamApplication, load_application
from ha_engine.query.layout import APPLICATION, APPLICATIONS

ARCHIVE_BYTES_MAX = 1 << 20
"""An archive is one record of the journal, which goes to each node in one message."""
FILES_MAX = 1_000
FILES_BYTES_MAX = 16 << 20
_NOT_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError)
_SECRETS = (".pem", ".key", ".p12", ".jks", ".env")
_IS_APPLICATION = re.compile(rf"({APPLICATIONS}/[^/]+/)?{re.escape(APPLICATION)}")
_NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """Packed applications. ``files`` has the content of each file by its path, with ``/``."""

    id: str
    content: bytes
    files: dict[str, bytes]

    @classmethod
    def read(cls, content: bytes) -> Archive:
        """Check and unpack a ZIP file in memory. Raises ApplicationError."""
        if len(content) > ARCHIVE_BYTES_MAX:
            raise ApplicationError(
                f"the archive has {len(content)} bytes, and at most {ARCHIVE_BYTES_MAX} are "
                "allowed; install large files on each host and name their absolute path"
            )
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                files = dict(_files_in(packed))
        except _NOT_ZIP as error:
            raise ApplicationError(f"the archive is not a ZIP file: {error}") from error
        if not any(_IS_APPLICATION.fullmatch(name) for name in files):
            raise ApplicationError(f"the archive has no {APPLICATION}")
        return cls(id_of(files), content, files)

    @classmethod
    def from_text(cls, text: str) -> Archive:
        """Read the base64 of a ZIP file. Raises ApplicationError."""
        try:
            return cls.read(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise ApplicationError(f"the archive is not base64: {error}") from error

    @property
    def text(self) -> str:
        """The ZIP file in base64."""
        return base64.b64encode(self.content).decode("ascii")

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Archive:
        """Pack these files. Raises ApplicationError."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, _NO_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, files[name])
        return cls.read(packed.getvalue())

    def unpack(self, directory: Path) -> None:
        """Write the files into the empty ``directory``. Raises ApplicationError if their names do
        not fit together, or on this file system."""
        for name, content in self.files.items():
            file = directory / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            except OSError as error:
                raise ApplicationError(f"{name!r} cannot be unpacked: {error.strerror}") from error


def pack(path: Path) -> Archive:
    """Pack what is at ``path``: a YAML file with the files that it names, or a directory with
    everything in it.

    Raises ApplicationError, also for a YAML file that is not valid.
    """
    application = load_application(path)
    if path.is_dir():
        return Archive.of(dict(_files_below(path)))
    directory = application.path.parent
    named = {one.relative_to(directory).as_posix() for one in _named(application)}
    files = {name: _content(directory / name) for name in sorted(named)}
    return Archive.of({**files, APPLICATION: _content(path)})


def _named(application: StreamApplication) -> Iterator[Path]:
    """The files beside the application file that it names. A file elsewhere must be on each
    host."""
    directory = application.path.parent
    texts = (query.text for query in application.queries.values())
    found = [text.source.resolve() for text in texts if isinstance(text, PythonFunction)]
    for spec in _with_messages(application):
        form = (spec or {}).get("format")
        named = form if isinstance(form, dict) else {}
        found += [(directory / named[key]).resolve() for key in FILES if key in named]
    return (one for one in found if one.is_relative_to(directory) and one.is_file())


def _with_messages(application: StreamApplication) -> Iterator[dict[str, object] | None]:
    for stream in application.streams.values():
        for source in stream.pulled:
            yield dict(source.messages) if source.messages is not None else None
    for query in application.queries.values():
        for sink in query.sinks:
            messages = getattr(sink, "messages", None)
            yield dict(messages) if messages is not None else None


def _files_below(directory: Path) -> Iterator[tuple[str, bytes]]:
    """All files in ``directory`` but hidden ones and compiled Python."""
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if not path.is_file() or any(p.startswith(".") or p == "__pycache__" for p in parts):
            continue
        if path.is_symlink() or path.suffix in _SECRETS:
            raise ApplicationError(
                f"{path} is a link or looks like a secret; every node and snapshot would get it, "
                "so keep it outside of the directory"
            )
        yield "/".join(parts), _content(path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApplicationError(f"{path} cannot be read: {error.strerror}") from error


def _files_in(packed: zipfile.ZipFile) -> Iterable[tuple[str, bytes]]:
    """The files of a ZIP file that may come from anyone: few, small, and below one directory."""
    entries = [entry for entry in packed.infolist() if not entry.is_dir()]
    if len(entries) > FILES_MAX or sum(entry.file_size for entry in entries) > FILES_BYTES_MAX:
        raise ApplicationError(
            f"the archive has more than {FILES_MAX} files or {FILES_BYTES_MAX >> 20} MiB"
        )
    for entry in entries:
        name = PurePosixPath(entry.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in entry.filename:
            raise ApplicationError(f"the archive has a file outside of it: {entry.filename!r}")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ApplicationError(f"the archive compresses {entry.filename!r} by another method")
        with packed.open(entry) as file:
            # The size in the directory may be wrong.
            content = file.read(entry.file_size + 1)
        if len(content) != entry.file_size:
            raise ApplicationError(f"the archive is damaged at {entry.filename!r}")
        yield str(name), content


def id_of(files: Mapping[str, bytes]) -> str:
    """The id of an archive with these files."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in sorted(files.items()):
        for part in (name.encode(), content):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
