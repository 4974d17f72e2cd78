"""The documents as tests read them: pages, their blocks of code, and the commands in those."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "docs" / "INSTALL.md"

_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROMPT = re.compile(r"^[$#] ")
_ENDS_A_COMMAND = {"|", "&&", ";"}
_APPLICATION = {"name", "streams", "queries"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    language: str
    title: str
    text: str


def pages() -> list[Path]:
    """Return every page of the source tree, new ones too, but for the changelog."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = sorted(set(listed.stdout.split("\0")) - {"", "CHANGELOG.md"})
    return [ROOT / name for name in names if (ROOT / name).exists()]


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[Block]:
    found = (Block(*match.groups(default="")) for match in _BLOCK.finditer(page.read_text()))
    return [block for block in found if block.language == language]


def inline_code(page: Path) -> list[str]:
    return _INLINE.findall(_BLOCK.sub("", page.read_text()))


def typed_lines(page: Path, heading: str) -> list[str]:
    """Return the lines to type below ``heading``, up to the next heading of the same level."""
    level = heading.partition(" ")[0]
    _, _, rest = page.read_text().partition(f"\n{heading}\n")
    assert rest, f"{shown(page)} has no heading {heading!r}"
    section = re.split(rf"^{level} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    found = (match[3] for match in _BLOCK.finditer(section) if match[1] == "console")
    return [line for text in found for line in _typed_lines(text)]


def typed_commands(page: Path) -> Iterator[list[str]]:
    """Yield the commands to type, one program at a time, without prompt, comment and sudo."""
    for block in blocks(page, "console"):
        for line in _typed_lines(block.text):
            words = shlex.split(line, comments=True)
            yield from filter(None, map(_of_root_too, _cut(words)))


def _typed_lines(text: str) -> Iterator[str]:
    """Yield typed lines; a command continues after a backslash and in open quotes. Skip output."""
    lines = iter(text.splitlines())
    for line in lines:
        if not _PROMPT.match(line):
            continue
        command = _PROMPT.sub("", line)
        while command.endswith("\\") or _is_open(command):
            command = f"{command.removesuffix(chr(92))}\n{next(lines)}"
        yield command


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def _cut(words: list[str]) -> Iterator[list[str]]:
    start = 0
    for index, word in enumerate([*words, "|"]):
        if word in _ENDS_A_COMMAND:
            yield words[start:index]
            start = index + 1


def _of_root_too(words: list[str]) -> list[str]:
    return words[3:] if words[:2] == ["sudo", "-u"] else words


def installed_config(node: str) -> str:
    """Return the config of the guide for ``node``, which is node-a or node-b."""
    (config,) = [block.text for block in blocks(INSTALL, "yaml") if "data_dir" in block.text]
    if node == "node-a":
        return config
    return _swapped(_swapped(config, "node-a", "node-b"), "10.0.0.1", "10.0.0.2")


def _swapped(text: str, one: str, other: str) -> str:
    return text.replace(one, "\0").replace(other, one).replace("\0", other)


# -- YAML ------------------------------------------------------------------------------------------


def yaml_blocks(page: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the text of each YAML block, with its keys."""
    return [(block.text, yaml.safe_load(block.text)) for block in blocks(page, "yaml")]


def applications(page: Path) -> list[str]:
    """Return each application of the page, complete; complete the parts of one."""
    found = [(text, tree) for text, tree in yaml_blocks(page)]
    return [_completed(text, tree) for text, tree in found if is_of_an_application(tree)]


def is_of_an_application(tree: dict[str, Any]) -> bool:
    return set(tree) <= _APPLICATION | {"watermark", "sinks"}


def _completed(text: str, tree: dict[str, Any]) -> str:
    """Put a part in the place of that of a sample: sinks in flights, the rest in join."""
    if set(tree) == _APPLICATION:
        return text
    whole = _sample("flights.yaml" if "sinks" in tree else "join.yaml")
    name, query = next(iter(whole["queries"].items()))
    query["sinks"] = tree.get("sinks", query["sinks"])
    whole["queries"] = tree.get("queries", {name: query})
    departures = whole["streams"]["departures"]
    departures["watermark"] = tree.get("watermark", departures["watermark"])
    return yaml.safe_dump(whole, sort_keys=False)


def _sample(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "applications" / name).read_text())
    return tree


def lay_out(page: Path, application: str, directory: Path) -> Path:
    """Write ``application`` with the modules that the page shows, and return its file."""
    for block in blocks(page, "python"):
        if block.title:
            (directory / block.title).write_text(block.text)
    path = directory / "application.yaml"
    path.write_text(application)
    return path
