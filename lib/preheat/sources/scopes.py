"""What runs when a module is imported, and what its names mean, as far as its own text tells."""

from __future__ import annotations

import ast
import collections
from typing import TYPE_CHECKING

from preheat.sources.pieces import FUNCTION
from preheat.sources.purity import Scope, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def really_run(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that an import runs: without docstrings, ``__main__`` and TYPE_CHECKING blocks."""
    for statement in body:
        if isinstance(statement, ast.If):
            answer = _known_test(statement.test)
            if answer is not None:
                yield from really_run(statement.body if answer else statement.orelse)
                continue
        if isinstance(statement, (ast.Pass, ast.Global)):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.AnnAssign) and statement.value is None:
            continue
        yield statement


def _known_test(test: ast.expr) -> bool | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _known_test(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING":
        return False
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.ops) == 1
        and isinstance(test.ops[0], (ast.Eq, ast.NotEq))
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    ):
        return isinstance(test.ops[0], ast.NotEq)
    return None


def scope_of(statements: Sequence[tuple[ast.stmt, tuple[str, ...]]]) -> Scope:
    """What the names of a module mean, from its statements and the names that each binds."""
    counts: collections.Counter[str] = collections.Counter()
    imported: dict[str, str] = {}
    classes: set[str] = set()
    values: dict[str, ast.expr] = {}
    for statement, bound in statements:
        for name in bound:
            counts[name] += 1
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imported.update(_import_paths(statement))
        elif isinstance(statement, ast.ClassDef):
            classes.add(statement.name)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is not None:
                values[statement.target.id] = statement.value
    once = {name for name, count in counts.items() if count == 1}
    bare = Scope({}, frozenset(counts), frozenset(), frozenset())
    return Scope(
        {name: path for name, path in imported.items() if name in once},
        frozenset(counts),
        frozenset(name for name in values if name in once and is_plain(values[name], bare)),
        frozenset(classes & once),
    )


def _import_paths(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            first = alias.name.split(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif alias.name != "*":
            base = "." * statement.level + (statement.module or "")
            yield alias.asname or alias.name, f"{base}.{alias.name}"


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Each name that a top-level statement binds, as often as it is written."""
    if isinstance(statement, (*FUNCTION, ast.ClassDef)):
        yield statement.name
        return
    for node in _outside_of_functions(statement):
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if type(node) not in _CLOSED:
            waiting += reversed([*ast.iter_child_nodes(node)])


# Nothing inside of these binds a name of the module.
_CLOSED = frozenset({*FUNCTION, ast.ClassDef, ast.Lambda, ast.Constant, ast.Name, ast.alias})
