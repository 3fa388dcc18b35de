"""Small replacements for what generated code and guards take from the compiler's modules.

Each does what the compiler's own does; what has no replacement here is refused when the image is built,
so a worker never meets a missing one.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import types
from typing import Any

import torch


def _tuple_iterator_item(iterator: Any, index: int) -> Any:
    _, (items,), start = iterator.__reduce__()
    return items[start + index]


def _tuple_iterator_length(iterator: Any) -> int:
    return int(iterator.__length_hint__())


def _set_item(values: Any, index: int) -> Any:
    return list(values)[index]


def _dict_key(mapping: Any, index: int) -> Any:
    return next(itertools.islice(dict.keys(mapping), index, index + 1))


def _make_cell(value: Any = None) -> types.CellType:
    return types.CellType(value)


def _new_object(kind: Any) -> Any:
    made = kind.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    return made


def _set_attribute(value: Any, name: str, item: Any) -> None:
    object.__getattribute__(value, "__dict__")[name] = item


def _delete_attribute(value: Any, name: str) -> None:
    del object.__getattribute__(value, "__dict__")[name]


def _to_numpy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_to_numpy(item) for item in value)
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value


def _set_function_modes(modes: Any) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _nested_function(
    code: types.CodeType,
    scope: dict[str, Any],
    name: str,
    defaults: Any,
    closure: Any,
    keyword_defaults: Any,
    annotations: Any,
) -> types.FunctionType:
    function = types.FunctionType(code, scope, name, defaults, closure)
    function.__kwdefaults__ = keyword_defaults
    if annotations is not None:
        if isinstance(annotations, tuple):
            annotations = dict(zip(annotations[::2], annotations[1::2], strict=True))
        function.__annotations__ = annotations
    return function


def _nothing(*_: Any) -> None:
    return None


# Modules of the compiler by attribute, as transformed bytecode asks for them.
MODULES: dict[str, dict[str, Any]] = {
    "torch._dynamo.utils": {
        "_get_error_on_graph_break": lambda: False,
        "_set_error_on_graph_break": _nothing,
        "call_size": lambda tensor, index: tensor.size(index),
        "call_storage_offset": lambda tensor: tensor.storage_offset(),
        "call_stride": lambda tensor, index: tensor.stride(index),
        "dataclass_fields": dataclasses.fields,
        "dict_getitem": dict.__getitem__,
        "dict_keys_getitem": _dict_key,
        "get_torch_function_mode_stack_at": lambda i: torch._C._get_function_stack_at(i),
        "iter_next": next,
        "list_getitem": list.__getitem__,
        "make_cell": _make_cell,
        "object_delattr_ignore_descriptor": _delete_attribute,
        "object_new": _new_object,
        "object_setattr_ignore_descriptor": _set_attribute,
        "record_pregraph_bytecode_enter": _nothing,
        "record_pregraph_bytecode_exit": _nothing,
        "set_getitem": _set_item,
        "set_torch_function_mode_stack": _set_function_modes,
        "to_numpy_helper": _to_numpy,
        "to_subclass": lambda tensor, kind: tensor.as_subclass(kind),
        "tuple_iterator_getitem": _tuple_iterator_item,
    },
    "torch._dynamo.variables.functions": {"_create_nested_fn": _nested_function},
}


@functools.cache
def module(name: str) -> types.ModuleType:
    """A module object with the replacements of one of the compiler's modules."""
    made = types.ModuleType(f"<preheat stand-in for {name}>")
    vars(made).update(MODULES[name])
    return made


# --- generated wrappers ------------------------------------------------------------------------


def _align(size: int) -> int:
    """Sizes inside a memory pool are multiples of 64 bytes."""
    return (size + 63) & -64


def _bias_addmm(
    inp: Any, mat1: Any, mat2: Any, *, out: Any = None, alpha: Any = 1, beta: Any = 1
) -> Any:
    if (inp.stride(0) == 0 and inp.size(0) != 0) or inp.size(0) == 1:
        return torch.addmm(inp[0], mat1, mat2, out=out, alpha=alpha, beta=beta)
    return torch.addmm(inp, mat1, mat2, out=out, alpha=alpha, beta=beta)


def _no_op(*_: Any, **__: Any) -> None:
    return None


# What generated code calls the number of its GPU: a value of the worker's, not of the build's.
DEVICE_INDEX = "_preheat_device_index"

WRAPPER: dict[str, Any] = {
    "align": _align,
    "bias_addmm": _bias_addmm,
    "run_intermediate_hooks": _no_op,
    "nullcontext": contextlib.nullcontext,
}


# --- guards ------------------------------------------------------------------------------------


@functools.cache
def guard_helpers() -> dict[str, Any]:
    """Names in guard expressions, besides ``L`` and ``G``."""
    import torch.utils._device

    return {
        "___as_tensor": torch._as_tensor_fullprec,
        "___check_obj_id": lambda value, expected: id(value) == expected,
        "___check_type_id": lambda value, expected: id(type(value)) == expected,
        "___dataclass_fields": dataclasses.fields,
        "___dict_contains": lambda key, mapping: dict.__contains__(mapping, key),
        "___from_numpy": from_numpy,
        "___get_torch_function_mode_stack_at": lambda i: torch._C._get_function_stack_at(i),
        "___namedtuple_fields": lambda value: value._fields,
        "___odict_getitem": collections.OrderedDict.__getitem__,
        "___tuple_iterator_getitem": _tuple_iterator_item,
        "___tuple_iterator_len": _tuple_iterator_length,
        "__load_module": importlib.import_module,
        "__math_isnan": math.isnan,
        "cast_symbool_to_symint_guardless": int,
        "device": torch.device,
        "inf": math.inf,
        "inspect": inspect,
        "math": math,
        "torch": torch,
        "utils_device": torch.utils._device,
    }


def from_numpy(value: Any) -> Any:
    """A NumPy array or scalar as a tensor, anything else as it is."""
    import numpy

    return torch.as_tensor(value) if isinstance(value, (numpy.generic, numpy.ndarray)) else value


def _constant(value: Any) -> Any:
    return lambda _: value


# How a value is reached where torch uses a Python function; by the name of its guard source.
ACCESSORS: dict[str, Any] = {
    "CallMethodItemSource": lambda _: lambda value: value.item(),
    "DataclassFieldsSource": lambda _: dataclasses.fields,
    "DynamicScalarSource": lambda _: int,
    "FloatTensorSource": lambda _: torch._as_tensor_fullprec,
    "ImportSource": lambda name: _constant(importlib.import_module(name)),
    "NamedTupleFieldsSource": lambda _: lambda value: value._fields,
    "NumpyTensorSource": lambda _: from_numpy,
    "SubclassAttrListSource": lambda _: lambda value: value.__tensor_flatten__()[0],
}


def _no_functorch(_: Any) -> Any:
    return lambda value: torch._C._functorch.peek_interpreter_stack() is None


def _no_saved_tensor_hooks(_: Any) -> Any:
    return lambda value: torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def _equal_base_value(expected: Any) -> Any:
    kind = type(expected)
    return lambda value: kind(value) == expected


def _equal_count(expected: Any) -> Any:
    return lambda value: type(value) is itertools.count and value.__reduce__()[1] == expected


PREDICATES: dict[str, Any] = {
    "base value": _equal_base_value,
    "count": _equal_count,
    "no functorch": _no_functorch,
    "no saved tensor hooks": _no_saved_tensor_hooks,
}
