"""Every reason for which torch's caches and packages pass over a graph, read from torch's own text."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where torch says so, and the names of what it says so with.
_PLACES = {
    "_functorch/_aot_autograd/autograd_cache.py": ("BypassAOTAutogradCache",),
    "_inductor/codecache.py": ("BypassFxGraphCache", "bypass"),
    "_dynamo/output_graph.py": ("bypass_package",),
    "_dynamo/guards.py": ("bypass_package", "PackageError"),
    "_dynamo/package.py": ("PackageError",),
}


def reasons() -> set[str]:
    """The words that each reason begins with; what stands for a value of the program is ``{}``."""
    found = set()
    for name, calls in _PLACES.items():
        tree = ast.parse((_torch() / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in calls and node.args:
                text = "".join(_text(node.args[0])).strip()
                # A reason that is handed on is counted where it is made.
                if text not in ("", "{}"):
                    found.add(text)
    return found


def _torch() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.JoinedStr):
        for part in value.values:
            yield from _text(part)
    elif isinstance(value, ast.BinOp):
        yield from _text(value.left)
        yield from _text(value.right)
    else:
        yield "{}"
