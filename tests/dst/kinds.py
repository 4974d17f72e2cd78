"""The kinds of histories."""

from __future__ import annotations

from tests.dst.history import History
from tests.dst.journal_history import JournalHistory

KINDS: dict[str, type[History]] = {"journal": JournalHistory}
