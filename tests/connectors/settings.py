"""The tests of connectors that need only a ``setting``: a place of a broker, and the sources or
sinks that are opened there."""

from __future__ import annotations

from typing import Any

import pytest

from ha_engine.connectors.streams import BATCH_BYTES_MAX
from tests.connectors.deliveries import values


class OfSetting:
    """The part of a contract that the fixture ``setting`` of a module knows."""

    setting: Any

    @pytest.fixture(autouse=True)
    def _use(self, setting: Any) -> None:
        self.setting = setting

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.setting.options()
        return options


def require_bounded_batches(setting: Any) -> None:
    """Require that a source limits its batches in bytes, and that a single larger message comes
    alone."""
    large, small = b"x" * 10_000_000, b"y" * 3_000_000
    setting.put(small, small, small)
    setting.put(large, b"last")
    source, found = setting.opened(), list[list[bytes | None]]()
    while sum(map(len, found)) < 5:
        found.append(values(source.read(1000, 1)))
    source.close()
    assert [one for batch in found for one in batch] == [small] * 3 + [large, b"last"]
    for batch in found:
        assert len(batch) <= 1 or sum(len(one or b"") for one in batch) <= BATCH_BYTES_MAX
