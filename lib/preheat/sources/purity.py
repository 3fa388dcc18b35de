"""Whether running a statement can do more than bind its name.

Errs on the side of an effect: only what is listed here, or is visibly made of constants and names, is
taken to do nothing else. A statement without effects counts only where its name is looked up.
"""

from __future__ import annotations

import ast
import builtins
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preheat.sources.mentions import chain_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Importing these does nothing that a program without the import would notice: the standard library,
# and what every worker has imported before it loads.
QUIET_LIBRARIES = frozenset(
    {"torch", "numpy", "triton", "functorch", "torchgen", "sympy", "preheat", "typing_extensions"}
    | set(sys.stdlib_module_names)
)

_BUILTIN_CALLS = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "len", "list", "object"}
    | {"range", "set", "slice", "str", "tuple", "abs", "min", "max", "round", "sum"}
    | {"staticmethod", "classmethod", "property"}
)
_LIBRARY_CALLS = frozenset(
    {
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "collections.namedtuple",
        "dataclasses.field",
        "functools.partial",
        "logging.getLogger",
        "operator.attrgetter",
        "operator.itemgetter",
        "pathlib.Path",
        "re.compile",
        "torch.Size",
        "torch.arange",
        "torch.device",
        "torch.eye",
        "torch.finfo",
        "torch.full",
        "torch.iinfo",
        "torch.ones",
        "torch.tensor",
        "torch.zeros",
        "triton.Config",
        "triton.cdiv",
        "triton.language.constexpr",
        "triton.next_power_of_2",
        "types.MappingProxyType",
        "types.SimpleNamespace",
    }
)
_LIBRARY_PREFIXES = ("math.", "typing.", "typing_extensions.")
_DECORATORS = frozenset(
    {
        "abc.abstractmethod",
        "contextlib.asynccontextmanager",
        "contextlib.contextmanager",
        "dataclasses.dataclass",
        "enum.unique",
        "functools.cache",
        "functools.cached_property",
        "functools.lru_cache",
        "functools.singledispatch",
        "functools.total_ordering",
        "functools.wraps",
        "preheat.spec.target",
        "preheat.target",
        "torch._dynamo.allow_in_graph",
        "torch._dynamo.assume_constant_result",
        "torch._dynamo.disable",
        "torch._dynamo.disallow_in_graph",
        "torch._dynamo.forbid_in_graph",
        "torch._dynamo.graph_break",
        "torch._dynamo.nonstrict_trace",
        "torch.compile",
        "torch.enable_grad",
        "torch.inference_mode",
        "torch.no_grad",
        "torch.jit.export",
        "torch.jit.ignore",
        "torch.jit.unused",
        "triton.autotune",
        "triton.heuristics",
        "triton.jit",
        "types.coroutine",
    }
)
_DECORATOR_PREFIXES = ("typing.", "typing_extensions.", "torch.compiler.")
_BUILTIN_DECORATORS = frozenset({"staticmethod", "classmethod", "property"})
_NESTED = (ast.Tuple, ast.List, ast.Set, ast.Starred)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names of a module mean, as far as its own text tells.

    ``imported``: name -> dotted path of the only import that binds it. ``bound``: all names that it
    binds. ``constants``: names bound once, to a constant. ``classes``: names bound once, to a class.
    The path of a relative import starts with its dots.
    """

    imported: Mapping[str, str]
    bound: frozenset[str]
    constants: frozenset[str]
    classes: frozenset[str]

    def path(self, node: ast.expr) -> str | None:
        """The dotted path of an imported thing (``torch.no_grad``), the name of a builtin, or None."""
        if isinstance(node, ast.Name):
            if node.id not in self.bound:
                return node.id if hasattr(builtins, node.id) else None
            return self.imported.get(node.id)
        chain = chain_of(node) if isinstance(node, ast.Attribute) else None
        if chain is None or chain[0] not in self.imported:
            return None
        return ".".join((self.imported[chain[0]], *chain[1:]))


def is_pure(node: ast.expr | None, scope: Scope) -> bool:
    """Whether evaluating an expression does nothing else."""
    if node is None or isinstance(node, (ast.Constant, ast.Name)):
        return True
    if isinstance(node, ast.Attribute):
        # Of imported things only: attributes of objects may be properties.
        return scope.path(node) is not None
    if isinstance(node, ast.Lambda):
        return _all((*node.args.defaults, *node.args.kw_defaults), scope)
    if isinstance(node, _NESTED):
        return _all(node.elts if hasattr(node, "elts") else [node.value], scope)
    if isinstance(node, ast.Dict):
        return _all((*node.keys, *node.values), scope)
    if isinstance(node, ast.IfExp):
        return _all((node.test, node.body, node.orelse), scope)
    if isinstance(node, ast.Subscript):
        return _is_generic(node, scope)
    if isinstance(node, ast.Call):
        return _is_pure_call(node, scope)
    return is_plain(node, scope)


def is_plain(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is made of numbers and strings alone: operators then do nothing else."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id in scope.constants
    if isinstance(node, ast.UnaryOp):
        return is_plain(node.operand, scope)
    if isinstance(node, ast.BinOp):
        return is_plain(node.left, scope) and is_plain(node.right, scope)
    if isinstance(node, ast.BoolOp):
        return all(is_plain(value, scope) for value in node.values)
    if isinstance(node, ast.Compare):
        return all(is_plain(value, scope) for value in (node.left, *node.comparators))
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(is_plain(value, scope) for value in node.elts)
    if isinstance(node, ast.JoinedStr):
        return all(is_plain(value, scope) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return is_plain(node.value, scope)
    return False


def is_quiet_decorator(node: ast.expr, scope: Scope, local: Iterable[str] = ()) -> bool:
    """Whether a decorator only makes something of what it decorates.

    ``local``: names of the class body around, for ``@name.setter``.
    """
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Call) and not _call_arguments(node, scope):
        return False
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        if called.value.id in local and called.attr in ("setter", "getter", "deleter"):
            return True
    path = scope.path(called)
    if path is None:
        return False
    return (
        path in _DECORATORS or path in _BUILTIN_DECORATORS or path.startswith(_DECORATOR_PREFIXES)
    )


def reads_source(node: ast.expr, scope: Scope) -> bool:
    """Whether a decorator compiles the text of what it decorates (``triton.jit``)."""
    called = node.func if isinstance(node, ast.Call) else node
    path = scope.path(called) or ".".join(
        chain_of(called) or () if isinstance(called, ast.Attribute) else ()
    )
    if isinstance(called, ast.Name):
        path = path or called.id
    return path.startswith("triton.") or "jit" in path or "kernel" in path or "script" in path


def _all(nodes: Iterable[ast.expr | None], scope: Scope) -> bool:
    return all(is_pure(node, scope) for node in nodes)


def _is_generic(node: ast.Subscript, scope: Scope) -> bool:
    """``dict[str, int]``, ``Optional[X]``: of builtin types and of names from ``typing``."""
    path = scope.path(node.value)
    if path is None or not (hasattr(builtins, path) or path.startswith(_LIBRARY_PREFIXES)):
        return False
    return is_pure(node.slice, scope)


def _is_pure_call(node: ast.Call, scope: Scope) -> bool:
    path = scope.path(node.func)
    if path is None or not _call_arguments(node, scope):
        return False
    if path in _LIBRARY_CALLS or path.startswith(_LIBRARY_PREFIXES):
        return True
    if path not in _BUILTIN_CALLS:
        return False
    if path in _BUILTIN_DECORATORS:
        return True
    # list(x) runs x's own __iter__, float(x) its __float__.
    return all(is_plain(argument, scope) for argument in node.args)


def _call_arguments(node: ast.Call, scope: Scope) -> bool:
    return _all(node.args, scope) and _all((one.value for one in node.keywords), scope)
