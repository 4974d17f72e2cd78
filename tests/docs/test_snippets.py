"""The snippets of the documents load, and their Python calls existing functions."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.app_test.events import decode_batches
from ha_engine.app_test.file import read_cases
from ha_engine.client import AsyncProducer, Producer
from ha_engine.config import Config
from ha_engine.config.load import load_config, load_tree
from ha_engine.config.observer import ObserverConfig
from ha_engine.config.receiver import ReceiverConfig
from ha_engine.query.application import load_application
from ha_engine.receive.decode import Decoder, Format
from tests.docs.pages import (
    ROOT,
    applications,
    blocks,
    is_of_an_application,
    lay_out,
    pages,
    shown,
    typed_commands,
    yaml_blocks,
)

OF_PROMETHEUS = {"rule_files", "scrape_configs", "remote_write"}
"""test_install and test_pushed_events test these configs."""
CLIENTS = {"Producer": Producer, "AsyncProducer": AsyncProducer}
EVERY_PAGE = [pytest.param(page, id=shown(page)) for page in pages()]
OTHER_TREES = {
    ROOT / "docs" / "RECEIVERS.md": ReceiverConfig,
    ROOT / "docs" / "OBSERVER.md": ObserverConfig,
}
KUBERNETES = ROOT / "docs" / "KUBERNETES.md"
VALUES = ROOT / "conf" / "helm" / "ha-engine" / "values.yaml"
SAMPLES = ROOT / "conf" / "applications"
QUICKSTART = ROOT / "docs" / "QUICKSTART.md"


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_applications_in_the_documents_load(page: Path, tmp_path: Path) -> None:
    for text in applications(page):
        load_application(lay_out(page, text, tmp_path))


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_configs_in_the_documents_load(page: Path, tmp_path: Path) -> None:
    for text, tree in yaml_blocks(page):
        if is_of_an_application(tree) or set(tree) <= OF_PROMETHEUS or "tests" in tree:
            continue
        if page == KUBERNETES:
            _require_known(tree, yaml.safe_load(VALUES.read_text()))
            continue
        path = tmp_path / "config.yaml"
        path.write_text(text)
        if page in OTHER_TREES and not set(tree) <= {"observe"}:
            load_tree(OTHER_TREES[page], path, {"OBSERVER_TOKEN": "t"})
            continue
        assert set(tree) <= set(Config.model_fields), f"nobody tries this out: {text}"
        # The secrets that the snippet refers to do not exist here.
        load_config(path, {"HA_ENGINE_DATABASE_URL": "postgresql://db/flights"})


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_tests_in_the_documents_fit_the_samples(page: Path, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    for block in blocks(page, "yaml"):
        if "tests" in yaml.safe_load(block.text):
            path = tmp_path / block.title
            path.write_text(block.text)
            file = read_cases(path)
            assert all(decode_batches(case, file.application) for case in file.cases)


def _require_known(given: dict[str, Any], values: dict[str, Any]) -> None:
    """Require that the chart has each value. It does not know the settings of the engine."""
    assert given.keys() <= values.keys(), given
    for name, value in given.items():
        if isinstance(value, dict) and values[name]:
            _require_known(value, values[name])


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_python_snippets_call_existing_functions(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = ast.parse(block.text)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            match call.func:
                case ast.Name(id=name) if name in CLIENTS:
                    _require_takes(CLIENTS[name], call)
                case ast.Attribute(value=ast.Name(id="producer"), attr=name):
                    _require_takes(getattr(Producer, name), call, self=True)


def _require_takes(called: Any, call: ast.Call, *, self: bool = False) -> None:
    """Raise TypeError when the function does not accept the call."""
    arguments = [None] * (len(call.args) + self)
    inspect.signature(called).bind(*arguments, **{str(key.arg): None for key in call.keywords})


def test_page_on_sending_names_existing_settings_of_a_producer() -> None:
    page = (ROOT / "docs" / "SENDING.md").read_text()
    section = page.partition("## Python")[2].partition("\n## ")[0]
    known = {*inspect.signature(Producer).parameters, *dir(Producer)}
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=\w+)?`", section))
    assert len(named) > 5
    assert named <= known


def test_event_of_the_quick_start_fits_its_stream(tmp_path: Path) -> None:
    (text,) = applications(QUICKSTART)
    application = load_application(lay_out(QUICKSTART, text, tmp_path))
    ((_, event),) = [words for words in typed_commands(QUICKSTART) if words[0] == "echo"]
    decoder = Decoder(application.streams["orders"].arrow_schema, 1)
    rows = decoder.decode(json.dumps(json.loads(event)).encode(), Format.JSON)
    assert rows.num_rows == 1
