"""The lines of ``ha-engine upgrade check``: which changes nodes can make one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ha_engine.postgres.schema_version import SchemaState
from ha_engine.sync.hello import Hello
from ha_engine.upgrade.comparison import Line, Verdict, compare, verdict_of
from ha_engine.upgrade.statement import MANIFEST, Format, Statement, statement_here

RUNTIME = {"python": "3.11", "java": "17", "batch semantics": "1", "spark": "4.3.0"}
HERE = Statement(
    engine="1.0.0",
    protocol_min=1,
    protocol_max=1,
    formats={
        "journal record": Format(1, 1, 1),
        "journal base": Format(1, 2, 2),
        MANIFEST: Format(1, 2, 2),
    },
    schema_min="0004",
    schema_max="0004",
    runtime=RUNTIME,
)
SCHEMA = SchemaState("0004", "0004")
PEER = Hello("1.0.0", "g", "", "node-b", "p", "j", "a", "c", RUNTIME, "b:1")


def lines(
    target: Statement,
    database: SchemaState | str = SCHEMA,
    peers: Mapping[str, Hello | str] | None = None,
) -> dict[str, Line]:
    return {line.subject: line for line in compare(HERE, target, database, peers or {})}


def with_format(name: str, form: Format) -> Statement:
    return replace(HERE, formats={**HERE.formats, name: form})


def test_a_version_fits_itself() -> None:
    here = statement_here()
    found = compare(here, here, SchemaState(here.schema_max, here.schema_max), {})
    assert {line.verdict for line in found} == {Verdict.FITS}
    assert verdict_of(found) is Verdict.FITS


@pytest.mark.parametrize(
    ("subject", "target", "verdict"),
    [
        ("wire", replace(HERE, protocol_max=2), Verdict.FITS),
        ("wire", replace(HERE, protocol_min=2, protocol_max=3), Verdict.BOTH_AT_ONCE),
        ("journal record", with_format("journal record", Format(1, 2, 1)), Verdict.FITS),
        ("journal record", with_format("journal record", Format(1, 2, 2)), Verdict.BOTH_AT_ONCE),
        ("journal record", with_format("journal record", Format(2, 2, 2)), Verdict.IMPOSSIBLE),
        ("journal base", with_format("journal base", Format(1, 3, 3)), Verdict.FITS),
        ("journal base", with_format("journal base", Format(1, 1, 1)), Verdict.IMPOSSIBLE),
        ("new file", with_format("new file", Format(1, 1, 1)), Verdict.FITS),
        (MANIFEST, with_format(MANIFEST, Format(1, 1, 1)), Verdict.FITS),
        ("batches", replace(HERE, runtime={**RUNTIME, "java": "21"}), Verdict.BOTH_AT_ONCE),
        ("checkpoints", replace(HERE, runtime={**RUNTIME, "java": "21"}), Verdict.FITS),
        ("checkpoints", replace(HERE, runtime={**RUNTIME, "spark": "4.4.0"}), Verdict.BOTH_AT_ONCE),
        ("batches", replace(HERE, runtime={}), Verdict.UNKNOWN),
        ("schema", replace(HERE, schema_min="0005", schema_max="0006"), Verdict.FITS),
    ],
)
def test_each_difference_has_its_verdict(subject: str, target: Statement, verdict: Verdict) -> None:
    found = lines(target)
    assert found[subject].verdict is verdict
    others = {line.verdict for name, line in found.items() if name != subject}
    if subject not in ("batches", "checkpoints"):
        assert others == {Verdict.FITS}


def test_the_schema_decides_whether_an_older_version_may_return() -> None:
    older = replace(HERE, engine="0.9.0", schema_min="0003", schema_max="0003")
    assert lines(older, SchemaState("0004", "0003"))["schema"].verdict is Verdict.FITS
    finalised = lines(older, SchemaState("0004", "0004"))["schema"]
    assert finalised.verdict is Verdict.IMPOSSIBLE
    assert "finalised for engines that know version 0004" in finalised.text
    assert lines(older, "no answer")["schema"].verdict is Verdict.UNKNOWN
    assert lines(HERE, "no answer")["schema"].verdict is Verdict.FITS


def test_a_file_that_only_one_version_knows_bars_the_way_without_it() -> None:
    newer = with_format("new file", Format(1, 1, 1))
    assert "reinit" in lines(newer)["new file"].remedy
    back = {line.subject: line for line in compare(newer, HERE, SCHEMA, {})}
    assert back["new file"].verdict is Verdict.IMPOSSIBLE


def test_a_newer_schema_is_upgraded_first() -> None:
    newer = replace(HERE, schema_min="0005", schema_max="0005")
    assert "'ha-engine db upgrade' of the target first" in lines(newer)["schema"].remedy


def test_other_nodes_are_compared_too() -> None:
    target = replace(HERE, engine="2.0.0", protocol_min=2, protocol_max=2)
    found = lines(target, SCHEMA, {"node-b": PEER, "node-c": "no answer in time"})
    assert "fits this version" in found["node-b"].text
    assert found["node-c"].verdict is Verdict.UNKNOWN
    at_target = replace(PEER, engine="2.0.0", protocol_min=2, protocol_max=2)
    assert "fits the target" in lines(target, SCHEMA, {"node-b": at_target})["node-b"].text
    stranger = replace(PEER, runtime={**RUNTIME, "spark": "3.5.0"})
    assert lines(target, SCHEMA, {"node-b": stranger})["node-b"].verdict is Verdict.BOTH_AT_ONCE


def test_the_worst_line_decides() -> None:
    ordered = [Line("x", verdict, "") for verdict in Verdict]
    assert verdict_of(ordered) is Verdict.IMPOSSIBLE
    assert verdict_of(ordered[:3]) is Verdict.BOTH_AT_ONCE
