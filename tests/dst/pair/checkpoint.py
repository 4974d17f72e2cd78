"""The checkpoint of one query: its state after each of its last batches, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ha_engine.system import json_file
from ha_engine.system.disk import disk
from ha_engine.system.files import Files

STATE = "state.json"
STATES_KEPT = 40

State = tuple[int, int, int]
"""The state after a batch: its number, the sequence at its end, and the events until then."""


def load(place: Path) -> tuple[str, list[State]]:
    """The lineage and the states of a checkpoint; both are empty if there is none."""
    try:
        tree = json_file.load(place / STATE)
    except FileNotFoundError:
        return "", []
    return tree["lineage"], [(number, through, total) for number, through, total in tree["states"]]


def store(place: Path, lineage: str, states: Sequence[State], files: Files) -> None:
    """Replace the checkpoint durably, with the newest states. Raises DiskFailed."""
    tree = {"lineage": lineage, "states": states[-STATES_KEPT:]}
    with disk(place):
        json_file.store(place / STATE, tree, files)
