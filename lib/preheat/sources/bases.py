"""What defining a class does besides binding its name, as far as its own text tells."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from preheat.sources.purity import QUIET_LIBRARIES, is_pure, is_quiet_decorator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.sources.purity import Scope

# Methods that libraries call on any object, without a name in user code.
PROTOCOL_METHODS = frozenset(
    {"backward", "close", "flush", "forward", "generate_vmap_rule", "get", "items", "jvp", "keys"}
    | {"mro", "read", "setup_context", "uuid", "values", "vjp", "vmap", "write"}
    | {"device", "dim", "dtype", "numpy", "shape", "size"}
)
# Libraries that call ``visit_`` plus the name of what they come across.
_PROTOCOL_PREFIXES = ("visit_", "do_", "handle_", "on_", "call_", "_print_", "print_")


def is_called_by_libraries(name: str) -> bool:
    """Whether a method of this name counts wherever its class does (``__add__``, ``_missing_``)."""
    return (
        name in PROTOCOL_METHODS
        or name.startswith(_PROTOCOL_PREFIXES)
        or (name.startswith("__") and name.endswith("__"))
        or (name.startswith("_") and name.endswith("_"))
    )


def base_names(node: ast.ClassDef, scope: Scope) -> tuple[str, ...]:
    """The last words of the names of its bases, as their own module calls them; "" for others."""
    return tuple(_last_word(base, scope) for base in node.bases)


def defines_loudly(node: ast.ClassDef, scope: Scope) -> bool:
    """Whether defining the class may do more than bind a name, whatever its bases do."""
    if node.keywords or any(not is_quiet_decorator(one, scope) for one in node.decorator_list):
        return True
    methods = {one.name for one in _functions(node)}
    if "__init_subclass__" in methods:
        return True
    return any(not _is_quiet_member(one, scope, methods) for one in node.body)


def _is_quiet_member(node: ast.stmt, scope: Scope, local: set[str]) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return is_quiet_function(node, scope, local)
    if isinstance(node, ast.ClassDef):
        return not defines_loudly(node, scope) and not foreign_bases(node, scope)
    if isinstance(node, ast.Assign):
        return all(isinstance(one, (ast.Name, ast.Tuple)) for one in node.targets) and is_pure(
            node.value, scope
        )
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and is_pure(node.value, scope)
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def is_quiet_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, local: set[str] | None = None
) -> bool:
    """Whether defining a function does no more than bind its name."""
    defaults = (*node.args.defaults, *node.args.kw_defaults)
    return all(is_pure(one, scope) for one in defaults) and all(
        is_quiet_decorator(one, scope, local or ()) for one in node.decorator_list
    )


def foreign_bases(node: ast.ClassDef, scope: Scope) -> tuple[str, ...]:
    """The paths of bases whose module decides whether subclassing is quiet; "?" where nobody knows.

    Left out: bases from this module and from star imports, which are known by name alone, builtins and
    quiet libraries.
    """
    found = []
    for base in node.bases:
        inner = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
        path = scope.path(inner)
        if isinstance(inner, ast.Name) and path is None:
            if inner.id in scope.bound and inner.id not in scope.classes:
                found.append("?")
        elif path is None:
            found.append("?")
        elif "." in path and path.split(".")[0] not in QUIET_LIBRARIES:
            found.append(path)
    return tuple(found)


def _last_word(node: ast.expr, scope: Scope) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    path = scope.path(node)
    if path is not None:
        return path.rpartition(".")[2]
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for one in node.body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield one
