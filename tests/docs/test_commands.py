"""Every command in the documents exists with its options, and is valid as written."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.routing import Route
from typer.main import get_command

from ha_engine.cli.root import program
from ha_engine.config import Config
from ha_engine.config.load import settings
from ha_engine.config.observer import ObserverConfig
from ha_engine.config.receiver import ReceiverConfig
from tests.docs.pages import ROOT, inline_code, pages, shown, typed_commands
from tests.still_node import still_node

ON_HOSTS = "for hosts of one's own"
OTHERS = {
    "apt-get": ON_HOSTS,
    "curl": "tests/docs/test_commands.py",
    "docker": "tests/test_compose.py",
    "echo": "tests/docs/test_snippets.py",
    "haproxy": "tests/e2e/test_haproxy.py",
    "helm": "tests/kubernetes/test_chart.py",
    "install": "tests/docs/test_install.py",
    "kubectl": ON_HOSTS,
    "ln": ON_HOSTS,
    "openssl": "tests/docs/test_install.py",
    "pip": "tests/test_packaging.py",
    "spark-class": "tests/cluster/standalone.py",
    "systemctl": ON_HOSTS,
    "systemd-analyze": "tests/test_systemd.py",
    "systemd-sysusers": ON_HOSTS,
    "systemd-tmpfiles": ON_HOSTS,
    "ufw": ON_HOSTS,
}
"""Programs of others in the documents, with the tests that run them."""

EVERY_PAGE = [pytest.param(page, id=shown(page)) for page in pages()]
HELP = "--help"
NO_SETTINGS = {"node.py", "journal.last"}
"""Words that look like a setting: a file, and a part of the status."""
_SETTING = re.compile(r"^(\w+)\.\w+(\.\w+)?(?=: |$)")
_ROUTE = re.compile(r"^(?:GET|POST) (/\S*)$")


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_commands_to_type_are_valid(page: Path) -> None:
    for words in typed_commands(page):
        match [Path(words[0]).name, *words[1:]]:
            case ["ha-engine", *rest]:
                require_parses(rest)
            case ["make", *rest]:
                require_target(rest[0])
            case ["python" | "python3", "-m", module, *rest]:
                require_module(module, rest)
            case [program, *rest]:
                assert program in OTHERS, f"nothing tells how {program} is tried out"
                require_routes(rest)


OF_OBSERVERS = {"/v1/output/[^/]+"}
"""The paths that only an observer serves; tests/observer/test_observer.py asks for them."""


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_commands_in_sentences_exist(page: Path) -> None:
    for code in inline_code(page):
        match code.split():
            case ["make", target, *_]:
                require_target(target)
            case ["ha-engine", *rest]:
                require_known(rest)
            case ["python", "-m", module, *rest]:
                require_module(module, rest)


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_routes_and_settings_in_sentences_exist(page: Path) -> None:
    trees = Config, ReceiverConfig, ObserverConfig
    keys = {".".join(setting.key) for tree in trees for setting in settings(tree)}
    for code in inline_code(page):
        if found := _ROUTE.match(code):
            require_route(found[1])
        elif (found := _SETTING.match(code)) and found[1] in sections() and code not in NO_SETTINGS:
            assert any(key == found[0] or key.startswith(f"{found[0]}.") for key in keys), code


def test_example_programs_of_the_documents_exist() -> None:
    places = set(OTHERS.values()) - {ON_HOSTS}
    assert [place for place in places if not (ROOT / place).exists()] == []


# -- ha-engine -------------------------------------------------------------------------------------


def require_parses(words: list[str]) -> None:
    command, rest = walked(words)
    if rest is not None:
        command.make_context(command.name, rest)


def require_known(words: list[str]) -> None:
    """Require a known command; in a sentence it may lack an argument, and ``a|b`` names two."""
    *before, last = words or [HELP]
    for name in last.split("|"):
        command, rest = walked([*before, name])
        for word in rest or ():
            assert not word.startswith("-") or has_option(command, word), f"{words}: {word}"


def walked(words: list[str]) -> tuple[Any, list[str] | None]:
    """Return the command that ``words`` name, with the rest; None when they name a group."""
    command: Any = get_command(program())
    for index, word in enumerate(words):
        below = getattr(command, "commands", None)
        if below is None:
            return command, words[index:]
        if word.startswith("-"):
            assert has_option(command, word), word
            continue
        assert word in below, f"ha-engine {' '.join(words)}: there is no {word}"
        command = below[word]
    return command, None if hasattr(command, "commands") else []


def has_option(command: Any, word: str) -> bool:
    return word == HELP or any(word in option.opts for option in command.params)


# -- make, python, HTTP ----------------------------------------------------------------------------


def require_target(name: str) -> None:
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE), name


def require_module(name: str, words: list[str]) -> None:
    """Require the options of a module in its own text, or in that of its package."""
    if name == "venv":
        return
    found = find_spec(name)
    assert found is not None, name
    home = Path(str(found.origin))
    texts = home.parent.glob("*.py") if home.name == "__init__.py" else [home]
    text = "".join(path.read_text() for path in texts)
    options = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    assert [option for option in options if not _declares(text, option)] == [], name


def _declares(text: str, option: str) -> bool:
    """Return whether the text declares the option, for argparse in full, for Typer as a
    parameter."""
    return bool(re.search(rf'"--{option}"|\b{option.replace("-", "_")}: ', text))


def require_routes(words: list[str]) -> None:
    for word in words:
        if word.startswith("http://"):
            require_route(urlsplit(word).path)


def require_route(path: str) -> None:
    """Require that a node serves the path; placeholders (``NAME``, ``{stream}``) match any name."""
    bare = path.partition("?")[0]
    assert any(re.fullmatch(pattern, bare) for pattern in routes()), path


@cache
def routes() -> frozenset[str]:
    """Return patterns of the paths that a node or an observer serves, the page among them."""
    served = (route.path for route in still_node().routes if isinstance(route, Route))
    return frozenset({"/", *OF_OBSERVERS, *(re.sub(r"\{\w+\}", "[^/]+", path) for path in served)})


def sections() -> set[str]:
    return set(Config.model_fields) - {"group", "application"}
