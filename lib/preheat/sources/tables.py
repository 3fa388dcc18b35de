"""A module's text as a table of pieces, read without executing it."""

from __future__ import annotations

import ast
import contextlib
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preheat.garbage import without_collector
from preheat.sources.bases import (
    base_names,
    defines_loudly,
    foreign_bases,
    is_called_by_libraries,
    is_quiet_function,
)
from preheat.sources.digest import NOT_A_PROGRAM, compiled
from preheat.sources.pieces import (
    FUNCTION,
    Compiled,
    Imported,
    Piece,
    joined,
    tell_function,
    tell_import,
    tell_statement,
)
from preheat.sources.purity import is_pure
from preheat.sources.quiet import without_warnings
from preheat.sources.scopes import bound_names, really_run, scope_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from preheat.sources.purity import Scope

_LABEL_LETTERS = 60


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """The pieces of one module in order.

    ``bound``: name -> what binds it. ``stars``: modules whose names it takes over. ``relative``: it has
    imports that start from its own place. ``repeated``: names that are bound more than once. ``loud``,
    ``runs``, ``derived``, ``lambdas``: the pieces that may count without being looked up.
    """

    pieces: tuple[Piece, ...]
    methods: tuple[Piece, ...]
    bound: dict[str, tuple[Piece, ...]]
    stars: tuple[Imported, ...]
    relative: bool
    repeated: frozenset[str]
    order: dict[Piece, int]
    loud: tuple[Piece, ...]
    runs: tuple[Piece, ...]
    derived: tuple[Piece, ...]
    lambdas: tuple[Piece, ...]
    _summary: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The digest of all pieces in order: where it is the same, no closure finds a difference."""
        if not self._summary:
            every = (*self.pieces, *self.methods)
            self._summary.append(joined(*(repr(piece.everything()) for piece in every)))
        return self._summary[0]


def read_table(
    source: bytes, *, code: CodeType | None = None, keep_trees: bool = False
) -> ModuleTable | None:
    """The table of a module's text, or None for text that does not parse.

    ``code``: what ``compiled`` gives for the text, for whoever has it already.
    ``keep_trees``: for whoever asks for mentions; without it the syntax tree, which is large, goes.
    """
    with without_collector():
        # The tree is gone before the block ends, and with it most of what there was to look through.
        return _read_table(source, code, keep_trees)


def _read_table(source: bytes, code: CodeType | None, keep_trees: bool) -> ModuleTable | None:
    try:
        with without_warnings():
            tree = ast.parse(source)
    except NOT_A_PROGRAM:
        return None
    if code is None:
        with contextlib.suppress(*NOT_A_PROGRAM):
            code = compiled(source)
    statements = [(one, tuple(bound_names(one))) for one in really_run(tree.body)]
    scope, codes = scope_of(statements), Compiled(code)
    reader = _Reader(scope, codes, keep_trees, _may_hold_lambdas(source))
    for statement, names in statements:
        reader.statement(statement, names)
    return reader.table()


def _may_hold_lambdas(source: bytes) -> bool:
    # Few modules have one. Some encodings could hide the word.
    return b"lambda" in source or b"coding" in source


class _Reader:
    """Makes pieces of statements."""

    def __init__(
        self, scope: Scope, compiled: Compiled, keep_trees: bool, may_hold_lambdas: bool
    ) -> None:
        self._scope = scope
        self._compiled = compiled
        self._keep_trees = keep_trees
        self._may_hold_lambdas = may_hold_lambdas
        self._pieces: list[Piece] = []
        self._methods: list[Piece] = []
        self._stars: list[Imported] = []
        self._runs: set[Imported] = set()
        self._relative = False

    def table(self) -> ModuleTable:
        """What was read."""
        bound: dict[str, list[Piece]] = {}
        for piece in self._pieces:
            for name in piece.names:
                bound.setdefault(name, []).append(piece)
        repeated = frozenset(name for name, pieces in bound.items() if len(pieces) > 1)
        every = (*self._pieces, *self._methods)
        return ModuleTable(
            tuple(self._pieces),
            tuple(self._methods),
            {name: tuple(pieces) for name, pieces in bound.items()},
            tuple(self._stars),
            self._relative,
            repeated,
            {piece: index for index, piece in enumerate(every)},
            tuple(piece for piece in self._pieces if piece.loud),
            tuple(piece for piece in self._pieces if piece.kind == "runs"),
            tuple(piece for piece in self._pieces if piece.bases or piece.foreign),
            tuple(piece for piece in self._pieces if piece.lambdas),
        )

    def statement(self, node: ast.stmt, bound: tuple[str, ...]) -> None:
        """Add the pieces of one statement, which binds these names."""
        if isinstance(node, ast.Import):
            self._import(node)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, FUNCTION):
            piece = self._add("function", node.name, node, (node.name,), self._is_loud(node))
            piece.told = tell_function([node], self._scope)
            piece.spans = ((node.name, piece.first),)
            piece.lambdas = self._has_lambda([*node.decorator_list, node.args])
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        else:
            names = tuple(dict.fromkeys(bound))
            symbol = names[0] if names else _label(node)
            kind = "assign" if isinstance(node, (ast.Assign, ast.AnnAssign)) else "statement"
            piece = self._add(kind, symbol, node, names, self._is_loud(node))
            piece.told = tell_statement(node)
            piece.lambdas = self._has_lambda([node])

    def _piece(self, kind: str, symbol: str, nodes: Sequence[ast.stmt]) -> Piece:
        first, last = _first_line(nodes[0]), nodes[-1].end_lineno or nodes[-1].lineno
        piece = Piece(kind, symbol, (), first, last, self._compiled)
        if self._keep_trees:
            piece.nodes, piece.bound = tuple(nodes), self._scope.bound
        return piece

    def _add(
        self, kind: str, symbol: str, node: ast.stmt, names: tuple[str, ...], loud: bool = False
    ) -> Piece:
        piece = self._piece(kind, symbol, [node])
        piece.names, piece.loud = names, loud
        self._pieces.append(piece)
        return piece

    def _add_import(
        self, kind: str, symbol: str, node: ast.stmt, names: tuple[str, ...], imported: Imported
    ) -> None:
        piece = self._add(kind, symbol, node, names, kind == "star")
        piece.nodes = ()
        piece.imported, piece.told = imported, tell_import(kind, imported)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._run(node, Imported(0, alias.name))
            name = alias.asname or alias.name.split(".")[0]
            module = Imported(0, alias.name if alias.asname else name)
            self._add_import("import", name, node, (name,), module)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        self._relative |= bool(node.level)
        if module == "__future__":
            return
        self._run(node, Imported(node.level, module))
        for alias in node.names:
            if alias.name == "*":
                star = Imported(node.level, module, "*")
                self._add_import("star", f"from {module} import *", node, (), star)
                self._stars.append(star)
                continue
            member = Imported(node.level, module, alias.name)
            self._run(node, member)
            name = alias.asname or alias.name
            self._add_import("import", name, node, (name,), member)

    def _run(self, node: ast.stmt, imported: Imported) -> None:
        """Importing runs the module the first time only."""
        if imported not in self._runs:
            self._runs.add(imported)
            words = "." * imported.level + imported.module
            symbol = f"import {words}{'.' + imported.attribute if imported.attribute else ''}"
            self._add_import("runs", symbol, node, (), imported)

    def _class(self, node: ast.ClassDef) -> None:
        methods = _splittable_methods(node)
        split = {one for members in methods.values() for one in members}
        rest = [
            one
            for index, one in enumerate(node.body)
            if one not in split and (index == 0 or not _does_nothing(one))
        ]
        loud = defines_loudly(node, self._scope)
        bases, foreign = base_names(node, self._scope), foreign_bases(node, self._scope)
        remainder = copy.copy(node)
        remainder.body = rest
        piece = self._add("class", node.name, remainder, (node.name,), loud)
        piece.told = tell_statement(remainder)
        piece.first, piece.last = _first_line(node), _last_line(rest, node)
        piece.bases, piece.foreign, piece.keywords = bases, foreign, bool(node.keywords)
        for name, members in methods.items():
            method = self._piece("method", f"{node.name}.{name}", members)
            method.told = tell_function(members, self._scope)
            method.spans = tuple((method.symbol, _first_line(one)) for one in members)
            method.owner, method.name = piece, name
            method.always = is_called_by_libraries(name) or not all(
                is_quiet_function(one, self._scope, {name}) for one in members
            )
            piece.members[name] = method
            self._methods.append(method)

    def _has_lambda(self, nodes: Sequence[ast.AST]) -> bool:
        return self._may_hold_lambdas and any(
            isinstance(one, ast.Lambda) for node in nodes for one in ast.walk(node)
        )

    def _is_loud(self, node: ast.stmt) -> bool:
        """Whether running a statement may do more than binding names."""
        scope = self._scope
        if isinstance(node, FUNCTION):
            return not is_quiet_function(node, scope)
        if isinstance(node, ast.ClassDef):
            return defines_loudly(node, scope) or bool(foreign_bases(node, scope) or node.bases)
        if isinstance(node, ast.Assign):
            return not (all(map(_is_name, node.targets)) and is_pure(node.value, scope))
        if isinstance(node, ast.AnnAssign):
            return not (_is_name(node.target) and is_pure(node.value, scope))
        if isinstance(node, ast.If):
            return not is_pure(node.test, scope) or self._any_loud((*node.body, *node.orelse))
        if isinstance(node, ast.Try):
            handlers = [one for handler in node.handlers for one in handler.body]
            return self._any_loud((*node.body, *handlers, *node.orelse, *node.finalbody))
        if isinstance(node, ast.Expr):
            return not isinstance(node.value, ast.Constant)
        return not isinstance(node, ast.Pass) and type(node).__name__ != "TypeAlias"

    def _any_loud(self, nodes: Sequence[ast.stmt]) -> bool:
        # Imports under a condition may run modules: those statements always count.
        return any(self._is_loud(one) for one in nodes)


def _splittable_methods(node: ast.ClassDef) -> dict[str, list[ast.FunctionDef]]:
    """Name -> the definitions under it, of methods whose place in the class body does not matter.

    It matters where something else binds the name, where the body reads it, and where a decorator or a
    default reads a name of the class: before the name is bound there, a global of that name is meant.
    """
    methods: dict[str, list[ast.FunctionDef]] = {}
    rest: list[ast.stmt] = []
    for one in node.body:
        if isinstance(one, FUNCTION):
            methods.setdefault(one.name, []).append(one)  # type: ignore[arg-type]
        else:
            rest.append(one)
    others = {name for one in rest for name in bound_names(one)}
    fixed = others | _names_read(rest)
    bound = others | set(methods)
    return {
        name: members
        for name, members in methods.items()
        if name not in fixed and not _names_read_by_heads(members) & (bound - {name})
    }


def _names_read_by_heads(members: Sequence[ast.FunctionDef]) -> set[str]:
    heads: list[ast.AST] = []
    for one in members:
        heads += [*one.decorator_list, *one.args.defaults]
        heads += [default for default in one.args.kw_defaults if default is not None]
    return _names_read(heads)


def _names_read(nodes: Sequence[ast.AST]) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_name(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_name, node.elts))
    return isinstance(node, ast.Name)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _last_line(rest: Sequence[ast.stmt], node: ast.ClassDef) -> int:
    """Where the class's own statements end: its methods are pieces of their own."""
    return max([node.lineno, *(one.end_lineno or 0 for one in rest)])


def _label(node: ast.stmt) -> str:
    """A few words that a person knows a statement by, and that stay when its values change."""
    told: ast.AST = node
    if isinstance(node, ast.Expr):
        told = node.value.func if isinstance(node.value, ast.Call) else node.value
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        told = node.targets[0] if isinstance(node, ast.Assign) else node.target
    elif not isinstance(node, ast.Delete):
        return type(node).__name__.lower()
    return ast.unparse(told).splitlines()[0][:_LABEL_LETTERS]
