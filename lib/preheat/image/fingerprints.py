"""Identity that survives a process: what a function, class, module or enum member is.

torch guards such values by ``id``, which means nothing in another process, so it drops those guards
when a package is saved. A fingerprint says by module, qualified name and code digest what the value
was, and the loaded package compares it again.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import Any

from preheat.sources.digest import code_digest

Fingerprint = tuple[Any, ...]

_LITERALS = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
)


def literal(value: object, depth: int = 4) -> Fingerprint | None:
    """A value that is compared by type and repr, or None for anything else."""
    if type(value) in _LITERALS:
        return ("literal", type(value).__name__, repr(value))
    if depth and type(value) in (tuple, list, frozenset, set):
        items: Any = value
        parts = [literal(item, depth - 1) for item in items]
        if all(part is not None for part in parts):
            if isinstance(value, (set, frozenset)):
                parts = sorted(parts, key=repr)
            return ("sequence", type(value).__name__, tuple(parts))
    if depth and type(value) is dict:
        pairs = [(literal(k, depth - 1), literal(v, depth - 1)) for k, v in value.items()]
        if all(k is not None and v is not None for k, v in pairs):
            return ("mapping", tuple(pairs))
    return None


def fingerprint(value: object) -> Fingerprint | None:
    """What ``value`` is, or None when nothing sure can be said (a plain object)."""
    import torch

    if (found := literal(value)) is not None:
        return found
    if isinstance(value, enum.Enum):
        return ("enum", type(value).__module__, type(value).__qualname__, value.name)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
        return ("torch", type(value).__name__, str(value))
    if isinstance(value, torch._ops.OpOverload):
        overload: Any = value
        return ("operator", overload.name())
    if isinstance(value, torch._ops.OpOverloadPacket):
        return ("operator", value._qualified_op_name)
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, type):
        return ("class", value.__module__, value.__qualname__, _class_digest(value))
    if isinstance(value, types.FunctionType):
        return ("function", *_function_name(value), code_digest(value.__code__))
    if isinstance(value, types.CodeType):
        return ("code", value.co_qualname, code_digest(value))
    if isinstance(value, types.MethodType):
        owner = value.__self__
        inner = fingerprint(value.__func__)
        if inner is None:
            return None
        kind = owner if isinstance(owner, type) else type(owner)
        return ("method", kind.__module__, kind.__qualname__, inner)
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return ("builtin", *_builtin_name(value))
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return ("builtin", value.__objclass__.__qualname__, value.__name__)
    if (found := _triton_kernel(value)) is not None:
        return found
    if type(value).__name__ == "ufunc" and type(value).__module__ == "numpy":
        return _numpy_function(value)
    if isinstance(value, torch._library.custom_ops.CustomOpDef):
        return _custom_operator(value)
    if isinstance(value, functools.partial):
        inner = fingerprint(value.func)
        arguments = literal((list(value.args), dict(value.keywords)))
        return None if inner is None or arguments is None else ("partial", inner, arguments)
    return None


def _numpy_function(value: Any) -> Fingerprint | None:
    """One of numpy's own; one that was made from a Python function is known by nothing."""
    own = getattr(sys.modules["numpy"], value.__name__, None) is value
    return ("builtin", "numpy", value.__name__) if own else None


def _triton_kernel(value: object) -> Fingerprint | None:
    """A ``triton.jit`` function, or what autotuning and heuristics wrap around one.

    The kernel's own code and its configurations; what it calls is part of the sources.
    """
    kind = type(value)
    if kind.__module__.partition(".")[0] != "triton" or not hasattr(value, "fn"):
        return None
    inner = fingerprint(value.fn)
    if inner is None:
        return None
    configurations = [
        (sorted(one.kwargs.items()), one.num_warps, one.num_stages, one.num_ctas)
        for one in getattr(value, "configs", ())
    ]
    return ("triton", kind.__qualname__, inner, repr(configurations))


def _custom_operator(value: Any) -> Fingerprint:
    """Its name, and the code of what a compiler asks: its form without data, and its gradient."""
    functions = (value._abstract_fn, value._setup_context_fn, value._backward_fn)
    digests = [code_digest(one.__code__) if hasattr(one, "__code__") else "" for one in functions]
    return ("custom operator", value._qualname, *digests)


def _class_digest(value: type) -> str:
    """Digest of the functions that a class in user code defines itself; library classes: ""."""
    module = sys.modules.get(value.__module__)
    if getattr(module, "__file__", None) is None or _in_torch(value.__module__):
        return ""
    digests = [
        (name, code_digest(member.__code__))
        for name, member in sorted(vars(value).items())
        if isinstance(member, types.FunctionType)
    ]
    import hashlib

    return hashlib.sha256(repr(digests).encode()).hexdigest()


def _in_torch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def _function_name(value: types.FunctionType) -> tuple[str, str]:
    """Module and name by where the code lives: ``functools.wraps`` rewrites the attributes."""
    module = value.__globals__.get("__name__")
    return (module if isinstance(module, str) else "?", value.__code__.co_qualname)


def _builtin_name(value: Any) -> tuple[str, str]:
    owner = getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__, value.__name__
    if isinstance(owner, type):
        return owner.__qualname__, value.__name__
    if owner is not None:
        return type(owner).__qualname__, value.__name__
    return getattr(value, "__module__", None) or "?", getattr(value, "__qualname__", value.__name__)
