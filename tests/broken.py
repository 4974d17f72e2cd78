"""A pytest plugin, ``-p tests.broken``: one line of the engine is broken for this run.

HA_ENGINE_BROKEN holds the module, the line and what stands there instead, as a JSON list.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

ENVIRONMENT = "HA_ENGINE_BROKEN"


class _Breaking(SourceFileLoader):
    """Compiles the module's source anew each time, since a cached one is whole."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if source.count(self._old) != 1:
            raise ImportError(f"{self._old!r} stands {source.count(self._old)} times in {fullname}")
        broken = source.replace(self._old, self._new)
        code: CodeType = self.source_to_code(broken.encode(), self.path)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, name: str, old: str, new: str) -> None:
        self._name, self._old, self._new = name, old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Breaking(fullname, spec.origin, self._old, self._new)
        return spec


if words := os.environ.get(ENVIRONMENT):
    sys.meta_path.insert(0, _Finder(*json.loads(words)))
