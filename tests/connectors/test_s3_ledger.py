"""The ledger of the source kind ``s3`` tells exactly what two sets of objects do not share."""

from __future__ import annotations

import random

import pytest

from ha_engine.connectors.s3.ledger import ENTRIES_MAX, Difference, Entry, Ledger


def _entries(chance: random.Random, count: int) -> set[Entry]:
    return {Entry.of(f"key {chance.random()}", f'"{chance.random()}"') for _ in range(count)}


def test_empty_ledgers_share_all() -> None:
    assert Ledger().minus(Ledger()) == Difference(frozenset(), frozenset())


def test_differences_of_large_ledgers_are_found() -> None:
    chance, found = random.Random(5), 0
    shared = _entries(chance, 200)
    for _ in range(100):
        first = _entries(chance, chance.randrange(ENTRIES_MAX // 2))
        second = _entries(chance, chance.randrange(ENTRIES_MAX // 2))
        difference = Ledger(shared | first).minus(Ledger(shared | second))
        if difference is not None:
            assert difference == Difference(frozenset(first), frozenset(second))
            found += 1
    assert found >= 99


@pytest.mark.parametrize("count", [120, 160, 1_000])
def test_too_many_differences_are_never_taken_for_others(count: int) -> None:
    chance = random.Random(count)
    for _ in range(20):
        first = _entries(chance, count)
        difference = Ledger(first).minus(Ledger())
        assert difference is None or difference.first == first


def test_changed_object_is_in_both_sets_with_its_key() -> None:
    old, new = Entry.of("a", "1"), Entry.of("a", "2")
    difference = Ledger([new]).minus(Ledger([old]))
    assert difference is not None
    assert [entry.key for entry in difference.first] == [entry.key for entry in difference.second]


def test_entries_are_removed() -> None:
    entries = list(_entries(random.Random(1), 30))
    ledger = Ledger(entries)
    for entry in entries[3:]:
        ledger.remove(entry)
    assert ledger.text == Ledger(reversed(entries[:3])).text


def test_text_is_parsed_and_short() -> None:
    ledger = Ledger(_entries(random.Random(2), 10_000))
    assert Ledger.parse(ledger.text).text == ledger.text
    assert len(ledger.text) < 5_000


@pytest.mark.parametrize("text", ["", "x", "eJwDAAAAAAE=", Ledger().text[:-4]])
def test_other_texts_are_no_ledger(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Ledger.parse(text)
