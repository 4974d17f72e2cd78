"""The reference of the configuration is what the schema says."""

from __future__ import annotations

from ha_engine.config.load import settings
from tests.docs.reference import PAGE, written


def test_the_reference_is_what_the_schema_says() -> None:
    assert PAGE.read_text() == written(), "run 'make reference' and commit"


def test_the_reference_has_each_key_once() -> None:
    page = PAGE.read_text()
    for setting in settings():
        assert page.count(f"\n| `{'.'.join(setting.key)}` | ") == 1, setting.key
