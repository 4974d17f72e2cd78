"""Mutate one place of the engine, found in its syntax tree: the tests must detect it.

A rename elsewhere, another layout of the source and another order of functions do not change a
mutation. A mutation whose place is missing or no longer unique raises MutationNotFound.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import ha_engine

ROOT = Path(ha_engine.__file__).parents[1]


class MutationNotFound(Exception):
    """The pattern of a mutation does not occur exactly once in its function."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` matches exactly one place in ``function`` of ``module``; ``new`` replaces it.

    Both are an expression or statements. Without a ``new`` the place is removed: a statement, an
    operand of ``and`` or ``or``, an argument, a keyword with this value, the condition of a
    comprehension. ``if x: ...`` is an ``if x`` with any body, which a new ``if y: ...`` keeps.
    """

    module: str
    function: str
    """The qualified name of a function, such as ``Lease.acquired``, or of a class."""
    old: str
    new: str

    def __str__(self) -> str:
        place = f"{self.module.removeprefix('ha_engine.')}:{self.function}"
        return f"{place}: {' '.join(self.old.split())[:60]}"

    def tree(self) -> ast.Module:
        """Return the module's mutated syntax tree. Raises MutationNotFound."""
        tree = parsed(self.module)
        scope = _scope(tree, self.function)
        if scope is None:
            raise MutationNotFound(f"{self}: there is no {self.function}")
        old, new = _pattern(self.old), _pattern(self.new)
        if isinstance(old, ast.expr) and isinstance(new, list) and new:
            old = [ast.Expr(old)]
        places = list(_places(scope, old))
        if len(places) != 1:
            raise MutationNotFound(f"{self}: it is there {len(places)} times")
        places[0](new)
        return ast.fix_missing_locations(tree)


def parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module of the engine."""
    return ast.parse(path_of(module).read_text())


def path_of(module: str) -> Path:
    """Return the path of a module's source, without importing it."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# -- the place and its replacement -----------------------------------------------------------------

_BLOCKS = ("body", "orelse", "finalbody")
_ANY = ast.dump(ast.parse("...").body[0])
Pattern = ast.expr | list[ast.stmt]
Replace = Callable[[Pattern], None]


def _pattern(source: str) -> Pattern:
    body = ast.parse(source).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return body[0].value
    return body


def _scope(tree: ast.AST, name: str) -> ast.AST | None:
    """Return the function or class of that qualified name; a nested function counts too."""
    scope: ast.AST | None = tree
    for part in name.split("."):
        scope = next((inner for inner in _definitions(scope) if inner.name == part), None)
    return scope


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(node: ast.AST | None) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node) if node is not None else ():
        if isinstance(child, Definition):
            yield child
        else:
            yield from _definitions(child)


def _places(scope: ast.AST, old: Pattern) -> Iterator[Replace]:
    for node, way in _walk(scope, []):
        if isinstance(old, list):
            yield from _statements(node, old)
        elif type(node) is type(old) and ast.dump(node) == ast.dump(old):
            yield partial(_put, way)


Step = tuple[ast.AST, str, int | None]
"""A node, its field, and the index in the field if that is a list."""


def _walk(node: ast.AST, way: list[Step]) -> Iterator[tuple[ast.AST, list[Step]]]:
    yield node, way
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield from _walk(value, [*way, (node, field, None)])
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(item, [*way, (node, field, index)])


def _statements(node: ast.AST, old: list[ast.stmt]) -> Iterator[Replace]:
    for field in _BLOCKS:
        block = getattr(node, field, None)
        if isinstance(block, list):
            for first in range(len(block) - len(old) + 1):
                found = block[first : first + len(old)]
                if all(map(_matches, found, old)):
                    yield partial(_splice, block, first, found)


def _matches(found: ast.AST, old: ast.stmt) -> bool:
    if type(found) is not type(old):
        return False
    if isinstance(found, ast.If) and isinstance(old, ast.If) and _is_any(old.body):
        return ast.dump(found.test) == ast.dump(old.test)
    return ast.dump(found) == ast.dump(old)


def _is_any(body: list[ast.stmt]) -> bool:
    return [ast.dump(statement) for statement in body] == [_ANY]


def _splice(block: list[ast.stmt], first: int, found: list[ast.stmt], new: Pattern) -> None:
    new = new if isinstance(new, list) else [ast.Expr(new)]
    for one, other in zip(found, new, strict=False):
        if isinstance(one, ast.If) and isinstance(other, ast.If) and _is_any(other.body):
            other.body, other.orelse = one.body, one.orelse
    block[first : first + len(found)] = new
    if not block:
        block.append(ast.Pass())


def _put(way: list[Step], new: Pattern) -> None:
    parent, field, index = way[-1]
    if not isinstance(new, list):
        _set(parent, field, index, new)
    elif isinstance(parent, ast.Expr | ast.keyword):
        _remove(way[:-1])
    else:
        _remove(way)


def _set(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def _remove(way: list[Step]) -> None:
    parent, field, index = way[-1]
    if index is None:
        raise MutationNotFound(f"what is there cannot be removed from {ast.unparse(parent)}")
    items = getattr(parent, field)
    del items[index]
    if field in _BLOCKS and not items:
        items.append(ast.Pass())
    if isinstance(parent, ast.BoolOp) and len(items) == 1:
        _set(*way[-2], items[0])


# -- importing mutated modules ---------------------------------------------------------------------


class _Loader(Loader):
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def module_spec(name: str, code: CodeType) -> ModuleSpec:
    """Return the spec of a module with the code ``code``."""
    spec = ModuleSpec(name, _Loader(code), origin=code.co_filename)
    spec.has_location = True  # sets __file__, by which a module finds the files beside it
    return spec


class _Broken(MetaPathFinder):
    def __init__(self, module: str, code: CodeType) -> None:
        self._module, self._code = module, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return module_spec(fullname, self._code) if fullname == self._module else None


def break_imports(mutation: Mutation) -> None:
    """Import the module only with the mutation from now on. Raises MutationNotFound."""
    module = mutation.module
    assert module not in sys.modules, f"{module} was imported whole"
    code = compile(mutation.tree(), str(path_of(module)), "exec")
    sys.meta_path.insert(0, _Broken(module, code))
