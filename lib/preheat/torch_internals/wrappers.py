"""Inductor's generated Python modules, executed from memory.

torch writes each wrapper's source to a shared cache directory and imports it from there, trusting a
file that is already there. A worker runs the verified text from the package instead, and needs no
writable directory.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def executing_in_memory() -> Iterator[None]:
    """Restore ``CompiledFxGraph`` objects without the compiler cache inside the block."""
    from torch._inductor.output_code import CompiledFxGraph

    with replaced(CompiledFxGraph, "after_deserialization", _after_deserialization):
        yield


def _after_deserialization(graph: Any, constants: Any) -> str:
    name = f"torch._inductor.runtime.compile_tasks.{graph.cache_key}"
    path = f"<preheat wrapper {graph.cache_key}>"
    module = types.ModuleType(name)
    module.__file__ = path
    exec(compile(graph.source_code, path, "exec"), vars(module))  # noqa: S102  verified text
    sys.modules.setdefault(name, module)
    for key, value in constants.unwrap(graph).items():
        setattr(module, key, value)
    graph.current_callable = module.call
    graph.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
    graph.compiled_fn_runner = getattr(module, "runner", None)
    return path
