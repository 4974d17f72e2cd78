"""Hooks of mkdocs besides mkdocs.yml: the targets of links out of docs/, and forbidden loads.

People read a page of docs/ in the source tree too, so its links name files beside docs/. The site
gets copies of them below ``source``; a directory or another page is named and not linked.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COPIES = "source"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*?\bsrc\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*?\bhref\s*=\s*["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//|class="mermaid\b""",
    re.IGNORECASE,
)
_CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
"""Text of an example, of which a browser loads nothing."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Handle mkdocs' event; add the page's link targets outside of docs/ to ``files``."""
    from mkdocs.structure.files import File

    text, wanted = rewritten(markdown, page.file.src_uri)
    for name in wanted:
        uri = f"{COPIES}/{name}"
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return text


def on_post_build(*, config: Any) -> None:
    """Handle mkdocs' event."""
    from mkdocs.exceptions import PluginError

    if found := strangers(Path(config.site_dir)):
        raise PluginError("the site loads from other hosts:\n" + "\n".join(found))


def rewritten(markdown: str, page: str) -> tuple[str, list[str]]:
    """Return the text of ``page`` (its path in docs/) for the site, and the files to copy for
    it."""
    wanted: list[str] = []

    def replaced(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        name = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if name.startswith("docs/"):
            return link[0]
        if not (ROOT / name).exists():
            raise ValueError(f"{page} links to {target}, which does not exist")
        if not (ROOT / name).is_file() or name.endswith(".md"):
            return words if words.strip("`") == name else f"{words} (`{name}` of the source)"
        wanted.append(name)
        return f"[{words}]({posixpath.relpath(f'{COPIES}/{name}', posixpath.dirname(page) or '.')})"

    return _LINK.sub(replaced, markdown), wanted


def strangers(site: Path) -> list[str]:
    """Return the resources that a browser would load from another host."""
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    return [
        f"{path.relative_to(site)}: {found[0]}"
        for path in sorted(pages)
        for found in _LOADED.finditer(_CODE.sub("", path.read_text(errors="replace")))
    ]
