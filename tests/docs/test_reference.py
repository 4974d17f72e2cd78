"""The reference of the configuration agrees with the schema."""

from __future__ import annotations

from ha_engine.config.load import settings
from tests.docs.reference import PAGE, written


def test_reference_agrees_with_the_schema() -> None:
    assert PAGE.read_text() == written(), "run 'make reference' and commit"


def test_the_reference_has_each_key_once() -> None:
    page = PAGE.read_text()
    for setting in settings():
        assert page.count(f"\n| `{'.'.join(setting.key)}` | ") == 1, setting.key
