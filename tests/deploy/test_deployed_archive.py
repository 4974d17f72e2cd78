"""Packing an application, and reading archives that anyone may have sent."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from ha_engine.deploy import Archive, pack, unpacked
from ha_engine.deploy.archive import ARCHIVE_BYTES_MAX, FILES_BYTES_MAX
from ha_engine.errors import ApplicationError

STREAMS = """
name: copies
streams:
  events:
    schema: {id: int not null, text: string}
"""
SQL = """
queries:
  copies: {sql: SELECT id FROM events}
"""
FUNCTION = """
queries:
  copies: {function: "rules:select"}
"""
RULES = "import helper\n\ndef select(streams):\n    return helper.same(streams['events'])\n"


def written(directory: Path, queries: str, name: str = "application.yaml") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "rules.py").write_text(RULES)
    (directory / "helper.py").write_text("def same(frame):\n    return frame\n")
    (directory / name).write_text(STREAMS + queries)
    return directory / name


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_yaml", ".yaml"), content)
    return packed.getvalue()


def test_file_is_packed_with_the_files_that_it_names(tmp_path: Path) -> None:
    sql = pack(written(tmp_path, SQL, "flights.yaml"))
    assert list(sql.files) == ["application.yaml"]
    assert list(pack(written(tmp_path, FUNCTION)).files) == ["application.yaml", "rules.py"]


def test_directory_is_packed_without_hidden_and_compiled_files(tmp_path: Path) -> None:
    written(tmp_path / "app", FUNCTION)
    for name in (".git", "__pycache__"):
        (tmp_path / "app" / name).mkdir()
        (tmp_path / "app" / name / "x").write_text("x")
    archive = pack(tmp_path / "app")
    assert list(archive.files) == ["application.yaml", "helper.py", "rules.py"]
    assert Archive.from_text(archive.text) == archive


def test_id_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    first, second = pack(written(tmp_path / "a", SQL)), pack(written(tmp_path / "b", SQL))
    other = pack(written(tmp_path / "c", SQL + "# a comment\n"))
    assert first.id == second.id != other.id
    stored = zipped(application_yaml=first.files["application.yaml"])
    assert stored != first.content
    assert Archive.read(stored).id == first.id


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_archive_with_a_file_outside_is_refused(name: str) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("application.yaml", "")
        archive.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(ApplicationError, match="outside"):
        Archive.read(packed.getvalue())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no zip", "not a ZIP file"),
        (b"", "not a ZIP file"),
        (bytes(ARCHIVE_BYTES_MAX + 1), "at most"),
        (zipped(other_yaml=b"x"), "no application.yaml"),
    ],
)
def test_bad_archive_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ApplicationError, match=problem):
        Archive.read(content)


def test_archive_that_grows_too_much_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("application.yaml", bytes(FILES_BYTES_MAX + 1))
    assert len(packed.getvalue()) < ARCHIVE_BYTES_MAX
    with pytest.raises(ApplicationError, match="MiB"):
        Archive.read(packed.getvalue())


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    content = bytearray(pack(written(tmp_path, SQL)).content)
    content[60] ^= 0xFF
    with pytest.raises(ApplicationError, match="ZIP"):
        Archive.read(bytes(content))


def test_error_of_an_application_names_its_place_in_the_archive(tmp_path: Path) -> None:
    broken = zipped(application_yaml=(STREAMS + "quries: {}\n").encode())
    with pytest.raises(ApplicationError) as refused, unpacked(Archive.read(broken)):
        pass
    assert str(refused.value).startswith("application.yaml: ")


def test_query_without_on_change_gets_that_of_the_deployment(tmp_path: Path) -> None:
    archive = pack(written(tmp_path, SQL))
    with unpacked(archive, "reset") as application:
        assert application.archive == archive.id
        assert application.queries["copies"].on_change is not None
        assert application.queries["copies"].on_change.value == "reset"
    with unpacked(archive) as application:
        assert application.queries["copies"].on_change is None
