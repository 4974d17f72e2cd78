"""The table of the lease's state says which method changes which field."""

from __future__ import annotations

import ast
import inspect
import re

from ha_engine.core.lease import Lease

CACHE = {"_known", "_possible"}


def table() -> dict[str, set[str]]:
    """The changing methods by field, as the docstring of Lease lists them."""
    rows = re.findall(r"^ {0,4}(\w+) {2,}(\w.*)$", inspect.getdoc(Lease) or "", re.MULTILINE)
    return {field: set(methods.split(", ")) for field, methods in rows}


def changes() -> dict[str, set[str]]:
    """The same by the code; a private method counts for the methods that call it."""
    tree = ast.parse(inspect.getsource(Lease)).body[0]
    assert isinstance(tree, ast.ClassDef)
    methods = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    found: dict[str, set[str]] = {}
    for name in methods:
        if not name.startswith("_"):
            for field in _assigned(name, methods) - CACHE:
                found.setdefault(field, set()).add(name)
    return found


def _assigned(name: str, methods: dict[str, ast.FunctionDef]) -> set[str]:
    found = set()
    for node in ast.walk(methods[name]):
        match node:
            case ast.Attribute(ast.Name("self"), field, ast.Store()):
                found.add(field)
            case ast.Call(ast.Attribute(ast.Name("self"), called)) if called.startswith("_"):
                found |= _assigned(called, methods)
    return found


def test_the_table_of_the_lease_is_what_the_code_does() -> None:
    assert table() == changes()
