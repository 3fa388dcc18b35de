"""Saving the values that guards are about: torch's own way, and what it cannot do or leaves out."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import guards as torch_guards
from torch._dynamo.exc import PackageError
from torch._library.custom_ops import OPDEFS, CustomOpDef

from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MARKINGS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
    "_dynamo_shape_ids",
    "_dynamo_unbacked_bounds",
)


class GuardStatePickler(torch_guards.GuardsStatePickler):
    """Also keeps how dimensions were marked, and knows what torch's own refuses.

    Custom operators, parametrized modules, and methods that are bound under another name.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, CustomOpDef):
            return _custom_operator, (obj._qualname,)
        if _is_parametrized(obj) and id(obj) in self.guard_tree_values:
            return self._parametrized(obj)
        if inspect.ismethod(obj) and not hasattr(obj.__self__, obj.__func__.__name__):
            return type(self)._unpickle_bound_method, (obj.__func__, obj.__self__)
        found = super().reducer_override(obj)
        if isinstance(obj, torch.Tensor) and isinstance(found, tuple):
            markings = {name: vars(obj)[name] for name in _MARKINGS if name in vars(obj)}
            if markings:
                return _marked, (*found, markings)
        return found

    def _parametrized(self, module: torch.nn.Module) -> Any:
        """Its class is made while the program runs and refuses to be pickled."""
        for value in vars(module).values():
            if id(value) not in self.guard_tree_values and callable(value):
                self.missing_values[id(value)] = value
        return type(self)._unpickle_module, (dict(vars(module)),)


def _is_parametrized(value: object) -> bool:
    return isinstance(value, torch.nn.Module) and torch.nn.utils.parametrize.is_parametrized(value)


def _custom_operator(name: str) -> CustomOpDef:
    operator: CustomOpDef = OPDEFS[name]
    return operator


def _marked(restore: Any, arguments: tuple[Any, ...], markings: Mapping[str, Any]) -> torch.Tensor:
    tensor: torch.Tensor = restore(*arguments)
    vars(tensor).update(markings)
    return tensor


class _Failure:
    why = ""


def not_saved() -> str:
    """Why the guards of the last frame could not be saved."""
    return _Failure.why or "torch gives no reason"


@contextlib.contextmanager
def saving_guards() -> Iterator[None]:
    """Let Dynamo save guards with ``GuardStatePickler`` inside the block.

    Guards that cannot be saved give no bytes, where torch would fail the program; ``not_saved`` says why.
    """
    manager = torch_guards.CheckFunctionManager
    original = manager.serialize_guards

    def serialize_or_say_why(*args: Any, **kwargs: Any) -> bytes:
        _Failure.why = ""
        try:
            return original(*args, **kwargs)
        except (
            AttributeError,
            PackageError,
            RuntimeError,
            TypeError,
            pickle.PicklingError,
        ) as error:
            _Failure.why = f"{type(error).__name__}: {error}"
            return b""

    with (
        replaced(torch_guards, "GuardsStatePickler", GuardStatePickler),
        replaced(manager, "serialize_guards", serialize_or_say_why),
    ):
        yield


@contextlib.contextmanager
def loading_guards() -> Iterator[None]:
    """What must be in place while saved guards are loaded: some sources register with a trace."""
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        yield
