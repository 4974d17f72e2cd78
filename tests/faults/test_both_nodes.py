"""Each way to lose the active once while both nodes get each request;
``python -m tests.faults.both_nodes`` does it thirty times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.active import FAULTS, in_random_order
from tests.faults.both_nodes import run_both


@pytest.mark.nightly("the tests of receive/forwarding.py have two gates with real gRPC")
@pytest.mark.spark
def test_requests_to_both_nodes_are_stored_once_and_never_refused(
    tmp_path: Path, database_url: str
) -> None:
    report, client = run_both(tmp_path, database_url, in_random_order(len(FAULTS), seed=3))
    assert report.wrong == []
    assert set(client.answers) == {200}
