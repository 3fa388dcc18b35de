"""Build side: a graph that was traced and not compiled, as Python text that runs without torch's tracer.

torch.fx writes a graph as a method of its module. What that module holds (constants, and the graphs of
operators such as ``cond``) becomes part of the text here, what it names is found again by name.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from preheat.image.values import UnportableError, encode

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping

    from preheat.image.format import Value

ENTRY = "call"
_KEPT_ELSEWHERE = "triton_kernel_wrapper"  # their kernels are in a table of the process


@dataclasses.dataclass(frozen=True)
class TracedSource:
    """``code`` defines ``ENTRY``, which takes the list of the graph's arguments; ``names`` and
    ``constants`` are what it looks up."""

    code: types.CodeType
    names: tuple[tuple[str, Value], ...]
    constants: Mapping[str, torch.Tensor]


def write_traced(graph: torch.fx.GraphModule) -> TracedSource:
    """The text of a graph. Raises ``UnportableError`` for what has no meaning in another process."""
    writer = _Writer()
    main = writer.function(graph)
    boxed = isinstance(graph.graph._codegen, torch.fx.graph._BoxedCodeGen)
    call = f"def {ENTRY}(args):\n    return {main}({'args' if boxed else '*args'})\n"
    text = "\n".join([*writer.parts, call])
    code = compile(text, "<preheat traced graph>", "exec", dont_inherit=True, optimize=0)
    names = tuple((name, encode(value)) for name, value in sorted(writer.names.items()))
    return TracedSource(code, names, writer.constants)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = ["class _Attributes:\n    pass\n"]
        self.names: dict[str, Any] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self._functions: dict[int, str] = {}

    def function(self, graph: torch.fx.GraphModule) -> str:
        """Write a graph's function and return its name; each graph is written once."""
        if id(graph) in self._functions:
            return self._functions[id(graph)]
        name = self._functions[id(graph)] = f"_graph_{len(self._functions)}"
        owner = f"{name}_self"
        self.parts.append(f"{owner} = _Attributes()\n" + "".join(self._attributes(graph, owner)))
        written = graph.graph.python_code("self")
        (function,) = [
            one for one in ast.parse(written.src).body if isinstance(one, ast.FunctionDef)
        ]
        function.name = name
        first = function.args.args.pop(0)
        function.body.insert(0, ast.parse(f"{first.arg} = {owner}").body[0])
        bare = _WithoutAnnotations().visit(function)
        self._keep_names(bare, written.globals)
        self.parts.append(ast.unparse(ast.fix_missing_locations(bare)) + "\n")
        return name

    def _attributes(self, graph: torch.fx.GraphModule, owner: str) -> list[str]:
        lines = []
        made = {owner}
        for node in graph.graph.nodes:
            if node.op == "call_module":
                raise UnportableError(f"a graph calls the module {node.target!r} as a whole")
            if _KEPT_ELSEWHERE in str(node.target):
                raise UnportableError("a graph that is not compiled launches a Triton kernel")
            if node.op != "get_attr":
                continue
            *inner, last = node.target.split(".")
            place, value = owner, graph
            for part in inner:
                place, value = f"{place}.{part}", getattr(value, part)
                if place not in made:
                    made.add(place)
                    lines.append(f"{place} = _Attributes()\n")
            lines.append(f"{place}.{last} = {self._value(getattr(value, last), node.target)}\n")
        return lines

    def _value(self, value: Any, target: str) -> str:
        if isinstance(value, torch.fx.GraphModule):
            return self.function(value)
        if isinstance(value, torch.Tensor):
            return self._constant(value, target)
        name = f"_value_{len(self.names)}"
        self.names[name] = value
        return name

    def _constant(self, value: torch.Tensor, target: str) -> str:
        if type(value) is not torch.Tensor or value.requires_grad:
            raise UnportableError(
                f"a graph holds {target!r}, a {type(value).__name__} that is no constant"
            )
        name = f"_constant_{len(self.constants)}"
        self.constants[name] = value
        return name

    def _keep_names(self, function: ast.AST, given: Mapping[str, Any]) -> None:
        for node in ast.walk(function):
            if not isinstance(node, ast.Name) or node.id not in given or hasattr(builtins, node.id):
                continue
            value = given[node.id]
            if self.names.setdefault(node.id, value) is not value:
                raise UnportableError(f"graphs use the name {node.id!r} for two things")


class _WithoutAnnotations(ast.NodeTransformer):
    """Annotations name types that nothing needs."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)
