"""The site has the targets of its links, and loads nothing from another host."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.docs.site import rewritten, strangers

DOCS = ROOT / "docs"


def test_link_targets_outside_of_the_documents_exist() -> None:
    copied = [
        name
        for page in DOCS.rglob("*.md")
        for name in rewritten(page.read_text(), page.relative_to(DOCS).as_posix())[1]
    ]
    assert "conf/ha-engine.sample.yaml" in copied


def test_a_link_that_leaves_the_documents_leads_to_a_copy() -> None:
    text, wanted = rewritten("a [rule](../../conf/prometheus/alerts.yaml).", "adr/1.md")
    assert text == "a [rule](../source/conf/prometheus/alerts.yaml)."
    assert wanted == ["conf/prometheus/alerts.yaml"]


def test_directory_and_other_page_are_named_and_not_linked() -> None:
    text, wanted = rewritten("[a pair](../compose/README.md), [conf](../conf)", "INSTALL.md")
    assert text == "a pair (`compose/README.md` of the source), conf"
    assert wanted == []


def test_broken_link_is_refused() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        rewritten("[gone](../conf/gone.yaml)", "INSTALL.md")


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script async src=//cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<img alt="" src="http://example.org/x.png">',
        "@font-face{src:url(https://fonts.example/x.woff2)}",
        '<pre class="mermaid"><code>graph</code></pre>',
    ],
)
def test_resource_from_another_host_is_found(loaded: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(loaded)
    assert len(strangers(tmp_path)) == 1


def test_link_for_people_does_not_count_as_a_loaded_resource(tmp_path: Path) -> None:
    page = '<a href="https://example.org">x</a><script src="assets/x.js"></script>'
    page += '<pre><code>http(url("http://10.0.0.1:8080"))</code></pre>'
    (tmp_path / "page.html").write_text(page + '<link rel="canonical" href="https://here/x.html">')
    assert strangers(tmp_path) == []


def test_every_page_is_in_the_navigation() -> None:
    tree = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(_leaves(tree)) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


def _leaves(tree: object) -> list[str]:
    match tree:
        case str(page):
            return [page]
        case list(parts):
            return [leaf for part in parts for leaf in _leaves(part)]
        case dict(parts):
            return [leaf for part in parts.values() for leaf in _leaves(part)]
    raise TypeError(tree)
