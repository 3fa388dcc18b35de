"""What a file says about a factory, read without importing it.

Not promised: names that are computed, or marks that are applied in another way than by a decorator
written on the function. The build process asks the imported function itself and is the authority.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preheat.sources.quiet import without_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PACKAGE = "preheat"
_DECORATOR = "target"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Declared:
    """A factory as its file declares it.

    ``marked``: ``@preheat.target`` stands on it. ``name``: the constant given as ``name=``, if any.
    ``line`` counts from 1.
    """

    line: int
    marked: bool
    name: str | None


def declared_name(source: bytes, function: str) -> str | None:
    """The constant ``name=`` of ``@preheat.target(name=...)`` on ``function``, or None.

    ``function`` may be dotted (``Class.method``). None also for a file that does not parse.
    """
    declared = find_declaration(source, function)
    return None if declared is None else declared.name


def find_declaration(source: bytes, function: str) -> Declared | None:
    """The definition of ``function`` that wins when the file runs from top to bottom, or None.

    None does not mean that the module lacks the name: see ``binds``.
    """
    tree = _parse(source)
    if tree is None:
        return None
    definition = _find(tree.body, function.split("."))
    if definition is None:
        return None
    aliases = _aliases(tree)
    for decorator in definition.decorator_list:
        if _is_target(decorator, aliases):
            return Declared(definition.lineno, True, _name_argument(decorator))
    return Declared(definition.lineno, False, None)


def marked_functions(source: bytes) -> tuple[tuple[str, int], ...]:
    """The functions of a module that ``@preheat.target`` stands on, with their lines.

    Nothing for a file that does not import preheat: other libraries have decorators of that name.
    """
    tree = _parse(source)
    if tree is None or not _imports(tree, _PACKAGE):
        return ()
    aliases = _aliases(tree)
    return tuple(
        (statement.name, statement.lineno)
        for statement in _statements(tree.body)
        if isinstance(statement, _Definition)
        and any(_is_target(one, aliases) for one in statement.decorator_list)
    )


def compiled_places(source: bytes) -> tuple[int, ...]:
    """The lines of a file where ``torch.compile`` is called or decorates something."""
    tree = _parse(source)
    if tree is None:
        return ()
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "torch"
        for alias in node.names
        if alias.name == "compile"
    }
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile")
        or (isinstance(node, ast.Name) and node.id in names)
    }
    return tuple(sorted(lines))


def _imports(tree: ast.Module, package: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name.split(".")[0] == package for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            return True
    return False


def binds(source: bytes, function: str) -> bool:
    """Whether the file may give ``function`` a value at all.

    False only when it parses and neither defines, imports nor assigns the first part of the name, and
    has no star import: then the target cannot be built until the file changes.
    """
    tree = _parse(source)
    if tree is None:
        return True
    first = function.split(".")[0]
    names = set(_bound_names(tree.body))
    return bool(names & {first, "*", "__getattr__"})


def _parse(source: bytes) -> ast.Module | None:
    try:
        with without_warnings():
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of one scope, those inside of ``if``, ``try``, ``with``, loops and ``match`` too."""
    for statement in body:
        yield statement
        if isinstance(statement, _Definition):
            continue
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            for part in getattr(statement, field, ()):
                yield from _statements([part] if isinstance(part, ast.stmt) else part.body)


def _find(body: Sequence[ast.stmt], names: list[str]) -> _Definition | None:
    found: _Definition | None = None
    for statement in _statements(body):
        if isinstance(statement, _Definition) and statement.name == names[0]:
            found = statement
    if found is None or len(names) == 1:
        return found
    return _find(found.body, names[1:]) if isinstance(found, ast.ClassDef) else None


def _aliases(tree: ast.Module) -> set[str]:
    """The names under which the file imports the decorator, its own name included."""
    names = {_DECORATOR}
    for statement in _statements(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.module in (
            _PACKAGE,
            f"{_PACKAGE}.spec",
        ):
            names.update(
                alias.asname or alias.name for alias in statement.names if alias.name == _DECORATOR
            )
    return names


def _is_target(decorator: ast.expr, aliases: set[str]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr == _DECORATOR
    return isinstance(called, ast.Name) and called.id in aliases


def _name_argument(decorator: ast.expr) -> str | None:
    if isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            value = keyword.value
            if keyword.arg == "name" and isinstance(value, ast.Constant):
                return value.value if isinstance(value.value, str) else None
    return None


def _bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in _statements(body):
        if isinstance(statement, _Definition):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.split(".")[0]
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
