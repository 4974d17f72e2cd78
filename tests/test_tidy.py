"""The habits of the project that a program can check. CONTRIBUTING has those for a person."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
OLDEST_PYTHON = "3.11.2"
"""That of Debian 12, on which the install guide must work."""
GENERATED = ROOT / "ha_engine" / "v1"

PURE = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "types",
    "typing",
    "ha_engine.types",
    "ha_engine.errors",
}
"""The modules that the core may import, without clock, random, socket, thread, file and Spark."""


def sources(*directories: str) -> list[Path]:
    found = [file for name in directories for file in sorted((ROOT / name).rglob("*.py"))]
    return [file for file in found if GENERATED not in file.parents]


def shown(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_import_rules_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_core_imports_no_clock_random_socket_thread_or_spark() -> None:
    strange = [
        f"{shown(file)} imports {name}"
        for file in sources("ha_engine/core")
        for name in imports(file)
        if name not in PURE and not (name + ".").startswith("ha_engine.core.")
    ]
    assert strange == []


def test_each_part_of_the_core_imports_only_parts_below_it() -> None:
    package = ROOT / "ha_engine" / "core"
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    lists = re.findall(r"^ {4}((?:\w+, )*\w+)(?: {2,}|$)", text, re.MULTILINE)
    rows = [line.split(", ") for line in lists]
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    upwards = [
        f"{part} imports {name}"
        for part in row_of
        for name in (one.removeprefix("ha_engine.core.") for one in imports(package / f"{part}.py"))
        if row_of.get(name, math.inf) < row_of[part]
    ]
    assert upwards == []
    assert {file.stem for file in package.glob("*.py")} - set(row_of) == {"__init__", "invariants"}


def test_every_module_has_a_docstring() -> None:
    silent = [
        shown(file)
        for file in sources("ha_engine", "tests", "benchmarks")
        if file.read_text().strip() and not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []


def test_no_test_is_skipped() -> None:
    lazy = [
        f"{shown(file)}: {found[0]}"
        for file in sources("tests")
        if file.name not in ("waiting.py", Path(__file__).name)
        for found in [re.search(r"pytest\.(skip|mark\.skip|mark\.xfail|xfail)\b", file.read_text())]
        if found
    ]
    assert lazy == []


def test_tracked_files_contain_no_machine_path_and_no_registry_host() -> None:
    # The spelling keeps this file from matching itself.
    places = [r"(?<![\w./-])/(wor[k]|farm|roo[t]|home/\w+)/", r"pyp[i]\.org", r"pythonhoste[d]"]
    places += [r"deb\.debia[n]", r"registry\.npm[j]s"]
    pattern = re.compile("|".join(places))
    leaks = []
    for file in tracked():
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                leaks.append(f"{shown(file)}:{number}: {line.strip()[:120]}")
    assert leaks == []


def test_every_pin_has_a_hash_and_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|--index|--find-links", text)
    for pin in re.split(r"\n(?=\S)", text.partition("\n")[2]):
        assert "--hash=sha256:" in pin, pin


def test_every_pinned_package_runs_on_the_python_of_debian() -> None:
    refused = {
        name: needed
        for name in _pins()
        if (needed := _requires_python(name)) and not SpecifierSet(needed).contains(OLDEST_PYTHON)
    }
    assert refused == {}


def _requires_python(name: str) -> str:
    return metadata(name)["Requires-Python"] or ""


def _pins() -> set[str]:
    text = (ROOT / "constraints.txt").read_text()
    return set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))


def test_every_package_of_the_project_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in wanted}  # type: ignore[index]
    assert names - _pins() == {"ha-engine"}


def test_the_docstring_of_each_package_names_each_of_its_modules() -> None:
    found = []
    for package in sources("ha_engine"):
        if package.name != "__init__.py" or package.parent.name == "migrations":
            continue
        words = set(re.findall(r"\w+", ast.get_docstring(ast.parse(package.read_text())) or ""))
        modules = {file.stem for file in package.parent.glob("*.py")} - {"__init__", "__main__"}
        modules |= {inner.parent.name for inner in package.parent.glob("*/__init__.py")}
        found += [f"{shown(package)}: {name}" for name in sorted(modules - words)]
    assert found == []
