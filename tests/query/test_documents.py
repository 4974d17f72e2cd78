"""The applications of the documents can run; the refusals that they show are the real ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ha_engine.query.application import load_application
from ha_engine.query.check import check_application
from tests.docs.pages import ROOT, applications, lay_out, pages, shown

pytestmark = [pytest.mark.spark, pytest.mark.rotates("files")]

PAGE = ROOT / "docs" / "APPLICATIONS.md"
WITH_APPLICATIONS = [page for page in pages() if applications(page)]
_REFUSED = re.compile(r"^\| `(SELECT .*?)` \| (?:`(\w+)` \| )?`(.+?)` \|$", re.MULTILINE)


@pytest.mark.parametrize("page", WITH_APPLICATIONS, ids=shown)
def test_each_application_of_a_document_can_run(page: Path, spark: Any, tmp_path: Path) -> None:
    for text in applications(page):
        report = check_application(load_application(lay_out(page, text, tmp_path)), spark)
        assert report.is_good, report


def test_each_refusal_in_a_document_is_the_real_one(spark: Any, tmp_path: Path) -> None:
    refused = _REFUSED.findall(PAGE.read_text())
    assert len(refused) > 10
    application = yaml.safe_load(applications(PAGE)[0])
    application["queries"] = {
        f"q{number}": {"sql": sql, "output_mode": mode or "append"}
        for number, (sql, mode, _) in enumerate(refused)
    }
    path = lay_out(PAGE, yaml.safe_dump(application, sort_keys=False), tmp_path)
    report = check_application(load_application(path), spark)
    for query, (sql, _, words) in zip(report.queries, refused, strict=True):
        assert query.error is not None, sql
        assert words in query.error, sql
