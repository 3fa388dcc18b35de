"""What can be compiled, and which function is its entry: refused with a remedy where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError, RefusedError
from preheat.image.programs import function_of, program_of

if TYPE_CHECKING:
    import types


def callable_with_code(fn: Any) -> Any:
    """What Dynamo can compile: a module, function or method; a callable object by its ``__call__``.

    A ``functools.partial`` becomes a function that calls it. Raises ``RefusedError`` for anything
    else without Python code of its own.
    """
    try:
        return program_of(fn)
    except IncompatibleError as error:
        raise RefusedError(
            f"A {type(fn).__name__} has no Python code that torch.compile could trace.",
            remedy="Wrap it in a function.",
        ) from error


def uncompiled(fn: Any) -> Any:
    """What ``torch.compile`` was applied to, where ``fn`` is its result; else ``fn`` itself."""
    if isinstance(fn, torch.nn.Module):
        is_compiled = type(fn).__module__ == "torch._dynamo.eval_frame"
        return fn._orig_mod if is_compiled else fn
    return getattr(fn, "_torchdynamo_orig_callable", fn)


def entry_function(program: Any) -> types.FunctionType:
    """The function whose code object is the program's entry.

    Raises ``RefusedError`` when there is none in Python.
    """
    try:
        return function_of(program)[0]
    except IncompatibleError as error:
        raise RefusedError(
            f"{program!r} has no Python code that torch.compile could trace."
        ) from error
