"""Inductor's generated Python module, reduced to what a worker runs.

The header imports the compiler and the kernels carry their sources; a lean image needs neither. This
takes the module's text and the names it had once executed, and keeps the functions alone. What they use
is named in one of four ways: a kernel, something found again by name, a stand-in, or a constant.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import types
from typing import TYPE_CHECKING, Any

from preheat.image.standins import DEVICE_INDEX, WRAPPER
from preheat.image.values import UnportableError, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from preheat.image.format import Value

ENTRY = "call"

_NOT_RUN = ("get_args", "benchmark_compiled_module")
_EXTERN = "extern_kernels"
_COMPILE = "async_compile"
_ON_DEVICE = ("_DeviceGuard", "set_device", "get_raw_stream", "_cuda_getCurrentRawStream")


@dataclasses.dataclass(frozen=True)
class Wrapper:
    """``kernels`` are names that the code calls kernels by; ``names`` and ``standins`` as in ``Graph``."""

    code: types.CodeType
    kernels: tuple[str, ...]
    names: tuple[tuple[str, Value], ...]
    standins: tuple[tuple[str, str], ...]


def reduce(text: str, scope: Mapping[str, Any], constants: Iterable[str]) -> Wrapper:
    """Reduce one generated module.

    ``scope`` are the executed module's globals, ``constants`` the names of its tensors. Raises
    ``UnportableError`` with what the module uses and a worker would not have.
    """
    module = ast.parse(text)
    kernels = [name for name in map(_kernel_name, module.body) if name]
    body = [statement for statement in module.body if _is_kept(statement)]
    rewriter = _Rewriter()
    body = [rewriter.visit(statement) for statement in body]
    defined = {name for statement in body for name in _bound(statement)}
    used = {name for statement in body for name in _loaded(statement)}
    aliases = [
        statement
        for statement in module.body
        if _is_alias(statement) and set(_bound(statement)) & used
    ]
    body = [*aliases, *body]
    defined |= {name for statement in aliases for name in _bound(statement)}
    local = {name for statement in body for name in _local_names(statement)}
    provided = {*defined, *kernels, *constants, *vars(builtins), DEVICE_INDEX}
    names, standins = [], []
    for name in sorted({*used, "torch"} - provided - (local - set(scope))):
        found = rewriter.externs.get(name)
        value = getattr(scope[_EXTERN], found) if found else scope.get(name, _MISSING)
        if value is _MISSING:
            raise UnportableError(f"generated code uses {name!r}, which nothing defines")
        standin = _standin(found or name, value)
        if standin is not None:
            standins.append((name, standin))
        else:
            names.append((name, _named(name, value)))
    tree = ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))
    code = compile(tree, "<preheat graph>", "exec", dont_inherit=True, optimize=0)
    called = tuple(name for name in kernels if name in used)
    return Wrapper(code, called, tuple(names), tuple(standins))


_MISSING = object()


def _named(name: str, value: Any) -> Value:
    try:
        return encode(value)
    except UnportableError as error:
        raise UnportableError(f"generated code uses {name!r}: {error}") from error


def _standin(name: str, value: Any) -> str | None:
    """The stand-in for a name that belongs to the compiler; None for anything else."""
    module = getattr(value, "__module__", None) or type(value).__module__
    if isinstance(value, types.ModuleType):
        module = value.__name__
    if not isinstance(module, str) or not module.startswith(("torch._inductor", "torch._dynamo")):
        return None
    if name in WRAPPER:
        return name
    short = getattr(value, "__name__", "").lstrip("_")
    if short in WRAPPER:
        return short
    raise UnportableError(f"generated code uses {name!r} of {module}, which has no stand-in")


def _kernel_name(statement: ast.stmt) -> str | None:
    """The name in ``name = async_compile.something(...)``."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    function, target = statement.value.func, statement.targets[0]
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        if function.value.id == _COMPILE and isinstance(target, ast.Name):
            return target.id
    return None


def _is_kept(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.If)) or _kernel_name(statement):
        return False
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return statement.name not in _NOT_RUN
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant) and _COMPILE not in _mentions(
            statement
        )
    if isinstance(statement, ast.Delete):
        return _COMPILE not in _mentions(statement)
    if isinstance(statement, ast.Assign):
        if isinstance(statement.value, ast.Constant) and statement.value.value is None:
            return False  # a constant's placeholder
        return not _is_alias(statement) and _COMPILE not in _bound(statement)
    raise UnportableError(f"generated code has a {type(statement).__name__} at its top level")


def _is_alias(statement: ast.stmt) -> bool:
    """``name = torch.some.attribute``."""
    if not isinstance(statement, ast.Assign):
        return False
    value: ast.expr = statement.value
    if not isinstance(value, ast.Attribute):
        return False
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id == "torch"


def _mentions(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _local_names(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        if isinstance(node, ast.arg):
            yield node.arg


def _loaded(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


class _Rewriter(ast.NodeTransformer):
    """Names kernels of libraries directly, and takes the device's number from the worker."""

    def __init__(self) -> None:
        self.externs: dict[str, str] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == _EXTERN:
            name = f"_preheat_extern_{node.attr}"
            self.externs[name] = node.attr
            return ast.copy_location(ast.Name(name, node.ctx), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else None
        called = function.id if isinstance(function, ast.Name) else called
        if called in _ON_DEVICE and len(node.args) == 1 and _is_number(node.args[0]):
            node.args = [ast.Name(DEVICE_INDEX, ast.Load())]
        for keyword in node.keywords:
            if keyword.arg == "index" and called == "device" and _is_number(keyword.value):
                keyword.value = ast.Name(DEVICE_INDEX, ast.Load())
            if keyword.arg == "device" and _is_cuda_device(keyword.value):
                parts = [
                    ast.Constant("cuda:"),
                    ast.FormattedValue(ast.Name(DEVICE_INDEX, ast.Load()), -1),
                ]
                keyword.value = ast.JoinedStr(parts)
        return node


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_cuda_device(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("cuda:")
    )
