"""What can be compiled, and which function is its entry."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch

from preheat.errors import RefusedError
from preheat.image.programs import calling


def callable_with_code(fn: Any) -> Any:
    """What Dynamo can compile: a module, function or method; a callable object by its ``__call__``.

    A ``functools.partial`` becomes a function that calls it. Raises ``RefusedError`` for anything
    else without Python code of its own.
    """
    if isinstance(fn, torch.nn.Module) or inspect.isfunction(fn) or inspect.ismethod(fn):
        return fn
    if isinstance(fn, functools.partial):
        return calling(fn)
    call = getattr(fn, "__call__", None)  # noqa: B004  the bound method itself is wanted
    if inspect.ismethod(call):
        return call
    raise RefusedError(
        f"A {type(fn).__name__} has no Python code that torch.compile could trace.",
        remedy="Wrap it in a function.",
    )


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
    from torch._dynamo.eval_frame import innermost_fn

    fn: Any = innermost_fn(program.forward if isinstance(program, torch.nn.Module) else program)
    function = getattr(fn, "__func__", fn)
    if not isinstance(function, types.FunctionType):
        raise RefusedError(f"{program!r} has no Python code that torch.compile could trace.")
    return function
