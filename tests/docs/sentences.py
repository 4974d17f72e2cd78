"""Draw sentences for readers to judge: would a stranger understand each at the first reading?

    python -m tests.docs.sentences --seed 7 --each 20

It draws from documents, from docstrings and comments, and from the messages in string literals.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS_MIN = 5
_END = re.compile(r"(?<=[.;!?])\s+(?=[A-Z`'\"(])")
_MARKUP = re.compile(r"^\s*([#>|*+-]|\d+\.|```)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=20, help="sentences of each kind")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    options = parser.parse_args()
    for kind, found in kinds(options.root).items():
        chosen = random.Random(f"{options.seed} {kind}").sample(sorted(set(found)), options.each)
        sys.stdout.write(f"\n{kind}\n")
        for place, sentence in chosen:
            sys.stdout.write(f"- {sentence}  ({place})\n")


def kinds(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The sentences of each kind, with their files."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    sources = sorted(file for file in (root / "ha_engine").rglob("*.py") if "v1" not in file.parts)
    return {
        "documents": [found for page in pages for found in _found(root, page, _prose(page))],
        "comments": [found for file in sources for found in _found(root, file, _comments(file))],
        "messages": [found for file in sources for found in _found(root, file, _messages(file))],
    }


def _found(root: Path, file: Path, texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        for sentence in _END.split(" ".join(text.split())):
            if len(sentence.split()) >= WORDS_MIN:
                yield file.relative_to(root).as_posix(), sentence


def _prose(page: Path) -> Iterator[str]:
    """The paragraphs and list items, without code and tables."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", text):
        if not block.lstrip().startswith(("#", "|", "<")):
            yield _MARKUP.sub("", block)


def _comments(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (ast.get_docstring(node) or "").split("\n\n")
    with file.open("rb") as lines:
        block: list[str] = []
        for token in tokenize.tokenize(lines.readline):
            if token.type == tokenize.COMMENT and re.match(r"\s*# (?!--)", token.line):
                block.append(token.string.removeprefix("#"))
            elif block and token.type not in (tokenize.NL, tokenize.COMMENT):
                yield " ".join(block)
                block = []


def _messages(file: Path) -> Iterator[str]:
    """String literals with several words that are no docstrings; f-strings with their fields."""
    tree = ast.parse(file.read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values):
                yield "".join(_shown(value) for value in values)
            case ast.Constant(str(text)) if id(node) not in parts | docs:
                yield text


def _shown(value: ast.expr) -> str:
    match value:
        case ast.FormattedValue(inner):
            return f"{{{ast.unparse(inner)}}}"
        case _:
            return str(ast.literal_eval(value))


if __name__ == "__main__":
    main()
