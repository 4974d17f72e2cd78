"""Composing the archive of a group from its applications."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha_engine.deploy import (
    Archive,
    Origin,
    Part,
    changed,
    composed,
    pack,
    parts_of,
    parts_of_file,
    unpacked,
)
from ha_engine.deploy.composition import ORIGINS
from ha_engine.errors import ApplicationError, DeploymentRefused
from ha_engine.query.application import load_application
from tests.deploy.test_deployed_archive import FUNCTION, SQL, written

NAMES = st.sampled_from(["flights", "orders", "texts"])
PATHS = st.sampled_from(["rules.py", "package/rules.py", "applications/x/application.yaml"])
ORIGIN = st.none() | st.builds(
    Origin, st.integers(1, 9), st.text(max_size=9), st.integers(0, 1 << 60)
)
NEWEST = Origin(10, "alice", 1)


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Part]:
    found = {}
    for name in draw(st.lists(NAMES, min_size=1, unique=True)):
        files = draw(st.dictionaries(PATHS, st.binary(max_size=8)))
        files["application.yaml"] = f"name: {name}\n# {draw(st.integers(0, 3))}".encode()
        found[name] = Part(files, draw(ORIGIN))
    return found


@given(parts())
def test_archive_has_the_applications_and_their_origins(given_parts: dict[str, Part]) -> None:
    archive = Archive.from_text(composed(given_parts).text)
    expected = {name: Part(one.files, one.origin or NEWEST) for name, one in given_parts.items()}
    assert parts_of(archive, NEWEST) == expected
    assert all(one.origin is None for one in parts_of(archive).values())


@given(parts(), parts())
def test_sent_applications_replace_those_of_their_names_only(
    present: dict[str, Part], sent: dict[str, Part]
) -> None:
    found = changed(present, sent)
    assert {name: one.files for name, one in found.items()} == {
        name: one.files for name, one in {**present, **sent}.items()
    }
    for name, one in found.items():
        unchanged = name in present and present[name].files == one.files
        assert one.origin == (present[name].origin if unchanged else None)


@given(parts(), parts(), parts())
def test_operators_who_deploy_different_applications_undo_nothing(
    present: dict[str, Part], first: dict[str, Part], second: dict[str, Part]
) -> None:
    second = {name: one for name, one in second.items() if name not in first}
    one, other = changed(changed(present, first), second), changed(changed(present, second), first)
    assert one == other
    assert composed(one).id == composed(other).id


def test_single_application_is_packed_as_if_no_other_had_ever_been_there(tmp_path: Path) -> None:
    first = pack(written(tmp_path / "copies", FUNCTION))
    assert composed(changed({}, parts_of(first))).id == first.id


def test_remaining_application_keeps_its_origin(tmp_path: Path) -> None:
    present = parts_of(pack(written(tmp_path / "copies", SQL)), NEWEST)
    archive = composed(present)
    assert sorted(archive.files) == [ORIGINS, "application.yaml"]
    assert parts_of(archive, Origin(11, "bob", 2)) == present


def test_application_runs_in_a_directory_of_its_own(tmp_path: Path) -> None:
    first = parts_of(pack(written(tmp_path / "first", FUNCTION)))
    other = written(tmp_path / "other", SQL.replace("copies:", "others:"))
    other.write_text(
        other.read_text().replace("name: copies", "name: others").replace("events", "others")
    )
    both = composed(changed(first, parts_of(pack(other))))
    with unpacked(both) as application:
        assert [one.name for one in application.applications] == ["copies", "others"]
        places = [one.relative_to(application.path) for one in application.directories]
        assert list(map(str, places)) == ["applications/copies", "applications/others"]


def test_file_of_the_config_is_taken_into_the_archive(tmp_path: Path) -> None:
    file = written(tmp_path, SQL, "copies.yaml")
    found = parts_of_file(load_application(file))
    assert found == {"copies": Part({"application.yaml": file.read_bytes()})}


def test_file_that_changed_after_the_start_is_not_taken(tmp_path: Path) -> None:
    running = load_application(written(tmp_path, SQL))
    written(tmp_path, SQL.replace("SELECT id", "SELECT text"))
    with pytest.raises(DeploymentRefused, match="changed after the start"):
        parts_of_file(running)


def test_functions_are_not_taken_without_the_modules_beside_them(tmp_path: Path) -> None:
    running = load_application(written(tmp_path, FUNCTION))
    with pytest.raises(DeploymentRefused, match=r"does not name helper\.py beside it"):
        parts_of_file(running)
    (tmp_path / "helper.py").unlink()
    assert list(parts_of_file(running)["copies"].files) == ["application.yaml", "rules.py"]


def test_error_names_the_application_in_the_archive(tmp_path: Path) -> None:
    good = parts_of(pack(written(tmp_path / "good", SQL)))
    bad = {"bad": Part({"application.yaml": b"name: bad\nstrams: {}\n"})}
    with pytest.raises(ApplicationError) as refused, unpacked(composed({**good, **bad})):
        pass
    assert str(refused.value).startswith("applications/bad/application.yaml: ")


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"name: ../up\n", "'../up' is not a name"),
        (b"streams: {}\n", "name: Field required"),
        (b"{", "is not YAML"),
        (b"\xff", "is not YAML"),
        (b"- x\n", "name: "),
    ],
)
def test_application_without_a_name_is_refused(file: bytes, problem: str) -> None:
    with pytest.raises(ApplicationError, match=r"^application\.yaml: .*" + problem):
        parts_of(Archive.of({"application.yaml": file}))


def test_archive_with_two_applications_of_one_name_is_refused() -> None:
    files = {f"applications/{place}/application.yaml": b"name: flights\n" for place in "ab"}
    with pytest.raises(ApplicationError, match="two applications of the archive have the name"):
        parts_of(Archive.of(files))


def test_origins_that_an_operator_sends_are_not_read() -> None:
    sent = Archive.of({"application.yaml": b"name: flights\n", ORIGINS: b"{"})
    assert parts_of(sent) == {"flights": Part({"application.yaml": b"name: flights\n"})}
