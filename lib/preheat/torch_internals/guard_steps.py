"""What one call that builds a guard tree becomes as data. Pure functions; ``guard_tree`` listens."""

from __future__ import annotations

import itertools
import marshal
import types
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from preheat.image.call_checks import TRAILING
from preheat.image.format import (
    Access,
    Constant,
    ExampleValue,
    GuardStep,
    Leaf,
    Mark,
    Predicate,
    Relation,
    Root,
    Value,
)
from preheat.image.standins import guard_helpers
from preheat.image.values import UnportableError, decode, encode, reference

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_EXAMPLE_TYPES = (int, float, str, bool, bytes, type(None))


def example_of(value: Any) -> ExampleValue:
    """What kind of example a manager was made with."""
    if isinstance(value, torch.Tensor):
        return ExampleValue("tensor")
    if type(value) in _EXAMPLE_TYPES:
        return ExampleValue("constant", encode(value))
    if isinstance(value, dict):
        return ExampleValue("mapping", reference(type(value)), len(value))
    return ExampleValue("object")


def split_arguments(name: str, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """A guard's own arguments, and its text. Since torch 2.12 a stack follows the text."""
    if name == "add_tensor_match_guard":
        return (*args[:4], *args[4 + TRAILING :]), _text(args[4])
    own, rest = args[: len(args) - TRAILING], args[len(args) - TRAILING :]
    return own, _text(rest[0])


def _text(parts: Any) -> tuple[str, ...]:
    # A comment with the file and line of the build's own stack follows each expression.
    return tuple(str(part).split("  # ")[0].strip()[:200] for part in parts)[:4]


# torch's registry of containers grows with every library that is imported, the compiler among them;
# what a program's own containers are made of is compared by itself.
_COMPILER_NAMES = (
    "__import_torch_dot__dynamo",
    "__import_torch_dot__inductor",
    # As a library's code spells it; torch imports the module when it is asked for the attribute.
    "torch._dynamo",
    "torch._inductor",
    "_pytree.SUPPORTED_NODES",
)


def about_compiler(expression: str) -> bool:
    """Whether a guard's expression is about the compiler: constant for one version of torch."""
    return any(name in expression for name in _COMPILER_NAMES)


def compiled_predicate(parts: tuple[str, ...]) -> bytes:
    """``def guard(L)`` over ``G`` and the helpers that a worker has."""
    text = "def guard(L):\n    return " + " and ".join(f"({part})" for part in parts)
    module = compile(text, "<preheat guard>", "exec")
    code = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    known = {*guard_helpers(), "G", *vars(__import__("builtins"))}
    loaded = {name for name in _global_names(code) if name not in known}
    if loaded:
        raise UnportableError(f"its expression uses {', '.join(sorted(loaded))}")
    return marshal.dumps(code)


def _global_names(code: types.CodeType) -> Iterator[str]:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def known_predicate(function: Any) -> tuple[str, Value | None]:
    """preheat's name for one of torch's Python checks, told by the code that made it."""
    maker = function.__qualname__.split(".<locals>")[0].rpartition(".")[2]
    cells = {
        name: cell.cell_contents
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
    }
    if maker == "FUNCTORCH_STACK_MATCH":
        if cells["states"]:
            raise UnportableError("a functorch transformation is active")
        return "no functorch", None
    if maker == "AUTOGRAD_SAVED_TENSORS_HOOKS":
        if cells["guard_hooks_ids"]:
            raise UnportableError("hooks on saved tensors are active")
        return "no saved tensor hooks", None
    if "base_value" in cells:
        return "base value", encode(cells["base_value"])
    if "normalized_count_iter" in cells and cells.get("count_type") is itertools.count:
        return "count", encode(cells["normalized_count_iter"])
    raise UnportableError(f"{maker} is a Python function of the compiler's")


def pruned(steps: list[GuardStep]) -> tuple[GuardStep, ...]:
    """The steps without those about the compiler's own modules: constant for one torch version."""
    dropped: set[int] = set()
    numbers: dict[int, int] = {}
    kept: list[GuardStep] = []
    for number, step in enumerate(steps):
        if isinstance(step, Access) and (step.parent in dropped or _reaches_compiler(step)):
            dropped.add(number)
            continue
        if isinstance(step, (Leaf, Predicate, Mark)) and step.parent in dropped:
            continue
        if isinstance(step, Relation):
            if any(one in dropped for group in step.groups for one in group):
                continue
            groups = tuple(tuple(numbers[one] for one in group) for group in step.groups)
            step = Relation(step.name, groups, step.names, step.text)
        elif not isinstance(step, Root):
            step = msgspec.structs.replace(step, parent=numbers[step.parent])
        numbers[number] = len(kept)
        kept.append(step)
    return tuple(kept)


def _reaches_compiler(step: Access) -> bool:
    if about_compiler(step.source):
        return True
    if not isinstance(step.key, Constant):
        return False
    key = decode(step.key)
    if step.method == "dict_getitem_manager":
        return isinstance(key, str) and about_compiler(key)
    return step.method == "lambda_manager" and str(key[1]).startswith(_COMPILER_MODULES)
