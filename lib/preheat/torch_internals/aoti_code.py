"""Build side: Python code between a program's signature and its library's flat lists of tensors.

``misfit(L)`` looks at everything about arguments that torch.export fixed: dtypes, devices, sizes, strides,
relations of sizes and their ranges, and values that are no tensors. ``run`` has the program's own
signature, and puts the results together as the program does.
"""

from __future__ import annotations

import collections
import inspect
from typing import TYPE_CHECKING, Any

import torch

from preheat.image.values import UnportableError

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Mapping, Sequence

    from preheat.torch_internals.aoti_capture import Exported

_LITERALS = (bool, int, float, str, type(None))


def library_code(made: Exported, values: Sequence[Any]) -> types.CodeType:
    """The module that defines ``run`` and ``misfit``. Raises ``UnportableError``."""
    places = list(_places(made))
    if len(places) != len(values):
        raise UnportableError("torch.export takes other arguments than the program was called with")
    tensors = [
        place
        for place, value in zip(places, values, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    lines = [*_misfit(places, values, made), *_run(tensors, made)]
    return compile("\n".join(lines), "<preheat library>", "exec", dont_inherit=True, optimize=0)


def _places(made: Exported) -> Iterator[str]:
    """An expression for each flat argument, over the dictionary ``L`` of arguments by name."""
    _, *parameters = inspect.signature(made.function).parameters.values()
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    several = [one.name for one in parameters if one.kind == one.VAR_POSITIONAL]
    others = [one.name for one in parameters if one.kind == one.VAR_KEYWORD]
    named = {
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    for index, value in enumerate(made.args):
        if index < len(positional):
            where = f"L[{positional[index].name!r}]"
        else:
            where = f"L[{several[0]!r}][{index - len(positional)}]"
        yield from _leaves(where, value)
    for name, value in made.kwargs.items():
        yield from _leaves(
            f"L[{name!r}]" if name in named else f"L[{others[0]!r}][{name!r}]", value
        )


def _leaves(where: str, value: Any) -> Iterator[str]:
    for path, _ in torch.utils._pytree.tree_flatten_with_path(value)[0]:
        steps = []
        for step in path:
            if hasattr(step, "idx"):
                steps.append(f"[{step.idx}]")
            elif hasattr(step, "key") and isinstance(step.key, (str, int)):
                steps.append(f"[{step.key!r}]")
            elif hasattr(step, "name"):
                steps.append(f".{step.name}")
            else:
                raise UnportableError(
                    f"an argument is inside of a container that is not known: {step}"
                )
        yield where + "".join(steps)


def _misfit(places: Sequence[str], values: Sequence[Any], made: Exported) -> Iterator[str]:
    yield "def misfit(L):"
    symbols: dict[str, str] = {}
    ranges = {
        str(symbol): (one.lower, one.upper)
        for symbol, one in made.exported.range_constraints.items()
    }
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        name = f"_{number}"
        yield f"    {name} = {place}"
        if isinstance(value, torch.Tensor):
            yield from _tensor(name, place, value, symbols, ranges)
        elif type(value) in _LITERALS:
            kind = "type(None)" if value is None else type(value).__name__
            wanted = f", and the library was built for {value!r}"
            yield f"    if type({name}) is not {kind} or {name} != {value!r}:"
            yield f"        return {f'{place} is '!r} + repr({name}) + {wanted!r}"
        else:
            raise UnportableError(
                f"{place} is a {type(value).__name__}: it cannot vary in a library"
            )
    yield "    return None"


def _tensor(
    name: str,
    place: str,
    value: torch.Tensor,
    symbols: dict[str, str],
    ranges: Mapping[str, tuple[Any, Any]],
) -> Iterator[str]:
    def unless(condition: str, what: str) -> Iterator[str]:
        yield f"    if not ({condition}):"
        yield f"        return {f'{place} {what}'!r}"

    dtype, device = value.dtype, value.device.type
    yield from unless(f"isinstance({name}, torch.Tensor)", "is no tensor")
    yield from unless(f"{name}.dtype is {dtype}", f"is not of {dtype}")
    yield from unless(f"{name}.device.type == {device!r}", f"is not on {device}")
    yield from unless(f"{name}.layout is torch.strided", "is not strided")
    yield from unless(f"{name}.dim() == {value.dim()}", f"has not {value.dim()} dimensions")
    for dimension, size in enumerate(value.shape):
        text = _expression(size)
        here = f"{name}.shape[{dimension}]"
        if text.isidentifier() and text not in symbols:
            symbols[text] = place
            yield f"    {text} = {here}"
            lower, upper = ranges.get(text, (0, None))
            yield from unless(
                f"{text} >= {int(lower)}", f"has fewer than {int(lower)} in dimension {dimension}"
            )
            if _is_number(upper):
                yield from unless(
                    f"{text} <= {int(upper)}",
                    f"has more than {int(upper)} in dimension {dimension}",
                )
            continue
        yield from unless(f"{here} == {text}", f"has not the size {text} in dimension {dimension}")
    for dimension, step in enumerate(value.stride()):
        text = _expression(step)
        condition = f"{name}.stride({dimension}) == {text} or {name}.shape[{dimension}] <= 1"
        yield from unless(condition, f"has not the stride {text} in dimension {dimension}")


def _is_number(bound: Any) -> bool:
    try:
        return int(bound) < 2**62
    except (TypeError, ValueError, OverflowError, AttributeError):
        return False


def _expression(size: Any) -> str:
    if isinstance(size, int):
        return str(size)
    from torch.utils._sympy.printers import PythonPrinter

    text: str = PythonPrinter().doprint(size.node.expr)
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789 +-*/()_")
    if not set(text) <= allowed:
        raise UnportableError(f"a size is {text}, which cannot be checked")
    return text


def _run(tensors: Sequence[str], made: Exported) -> Iterator[str]:
    signature = inspect.signature(made.function)
    names = list(signature.parameters)
    if {"L", "_preheat_run", "_outputs", "torch"} & set(names):
        raise UnportableError("a parameter has a name that preheat needs")
    bare = [
        parameter.replace(annotation=parameter.empty, default=parameter.empty)
        for parameter in signature.parameters.values()
    ]
    yield f"def run{inspect.Signature(bare)}:"
    yield "    L = {" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
    yield f"    _outputs = _preheat_run([{', '.join(tensors)}])"
    yield f"    return {_structure(_outputs(made))}"


class _Output:
    """Stands for one result."""

    def __init__(self, text: str) -> None:
        self.text = text


def _outputs(made: Exported) -> Any:
    from torch.export.graph_signature import ConstantArgument, TensorArgument

    inputs = {
        spec.arg.name: index
        for index, spec in enumerate(made.exported.graph_signature.input_specs)
        if hasattr(spec.arg, "name")
    }
    found = []
    for index, spec in enumerate(made.exported.graph_signature.output_specs):
        if isinstance(spec.arg, ConstantArgument):
            if type(spec.arg.value) not in _LITERALS:
                raise UnportableError(f"a result is a {type(spec.arg.value).__name__}")
            found.append(_Output(repr(spec.arg.value)))
        elif isinstance(spec.arg, TensorArgument):
            if spec.arg.name in inputs:
                raise UnportableError("a result is an argument or a parameter itself")
            found.append(_Output(f"_outputs[{index}]"))
        else:
            raise UnportableError("a result is a number that depends on sizes")
    return torch.utils._pytree.tree_unflatten(found, made.exported.call_spec.out_spec)


def _structure(value: Any) -> str:
    if isinstance(value, _Output):
        return value.text
    if value is None:
        return "None"
    if type(value) is tuple:
        return "(" + "".join(f"{_structure(one)}, " for one in value) + ")"
    if type(value) is list:
        return "[" + ", ".join(map(_structure, value)) + "]"
    if type(value) is dict and all(isinstance(key, (str, int)) for key in value):
        return "{" + ", ".join(f"{key!r}: {_structure(one)}" for key, one in value.items()) + "}"
    kind = (
        "an OrderedDict"
        if isinstance(value, collections.OrderedDict)
        else f"a {type(value).__name__}"
    )
    raise UnportableError(f"results are in {kind}; a library gives tuples, lists and dicts")
