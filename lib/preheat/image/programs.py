"""What a target is: the program that is called, its entry function, and the GPU that it is for."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Callable


def program_of(fn: Any) -> Any:
    """A module, function or method as it is; a callable object's ``__call__``."""
    if isinstance(fn, torch.nn.Module) or inspect.isfunction(fn) or inspect.ismethod(fn):
        return fn
    if isinstance(fn, functools.partial):
        return calling(fn)
    call = getattr(fn, "__call__", None)  # noqa: B004  the bound method itself is wanted
    if inspect.ismethod(call):
        return call
    raise IncompatibleError(f"A {type(fn).__name__} has no Python code.")


def calling(fn: functools.partial[Any]) -> types.FunctionType:
    """A function that calls ``fn``; the build and the worker make the same one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]


def device_index(fn: Any) -> int:
    """The number of the GPU that a program is for: its parameters', else the current one; 0 without."""
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    if isinstance(module, torch.nn.Module):
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if tensor.device.type == "cuda":
                return tensor.device.index or 0
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return int(cuda.current_device())
    return 0


def function_of(program: Any) -> tuple[types.FunctionType, Any]:
    """The function whose code is the program's entry, and what it is bound to.

    Raises ``IncompatibleError`` when it has none in Python.
    """
    found: Any = program.forward if isinstance(program, torch.nn.Module) else program
    while (inner := getattr(found, "_torchdynamo_orig_callable", None)) is not None:
        found = inner
    owner = found.__self__ if inspect.ismethod(found) else None
    function = getattr(found, "__func__", found)
    if not isinstance(function, types.FunctionType):
        raise IncompatibleError(f"{program!r} has no Python code.")
    return function, owner


def globals_of(fn: Any) -> dict[str, Any]:
    """The globals of the target's own code: they may belong to no module."""
    try:
        function, _ = function_of(program_of(fn))
    except IncompatibleError:
        return {}
    return function.__globals__


def forward_of(program: Any) -> Any:
    """What a call of a module reaches; None for anything else."""
    if not isinstance(program, torch.nn.Module):
        return None
    return getattr(program.forward, "__func__", program.forward)


def module_call(module: torch.nn.Module, entry: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call: its hooks run as Python runs them, around the compiled forward."""
    own = vars(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return hooked(*args, **kwargs)
        return entry(module, *args, **kwargs)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        kind: Any = type(module)
        forward = {"forward": lambda _, *a, **k: entry(module, *a, **k)}
        stand_in: Any = kind.__new__(type(kind.__name__, (kind,), forward))
        object.__setattr__(stand_in, "__dict__", own)
        return stand_in._call_impl(*args, **kwargs)

    return call
