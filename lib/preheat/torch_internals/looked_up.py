"""Build side: what of their globals the bytecode and the guards of a frame look at."""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING

from preheat.image.format import Access, Constant, Predicate, unmarshal
from preheat.torch_internals.guard_steps import pruned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.torch_internals.guard_tree import GuardTree


def attributes_of(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Each global that is loaded, with the attribute that is taken from it at once."""
    loaded: str | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and loaded is not None:
            yield loaded, instruction.argval
        elif loaded is not None and instruction.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG"):
            yield loaded, ""
        if instruction.opname not in ("CACHE", "EXTENDED_ARG"):
            is_global = instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            loaded = instruction.argval if is_global else None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from attributes_of(constant)


def names_of(code: types.CodeType) -> Iterator[str]:
    """Every name that bytecode looks up, as a global or an attribute, in inner functions too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of(constant)


def guarded_names(tree: GuardTree) -> Iterator[str]:
    """Globals that guards look at."""
    steps = pruned(tree.steps)
    roots = {
        index
        for index, step in enumerate(steps)
        if isinstance(step, Access) and step.method == "globals_dict_manager"
    }
    for step in steps:
        if isinstance(step, Access) and step.parent in roots and step.key is not None:
            if isinstance(step.key, Constant):
                key = unmarshal(step.key.data)
                if isinstance(key, str):
                    yield key
        if isinstance(step, Predicate) and step.code:
            for constant in unmarshal(step.code).co_consts:
                if isinstance(constant, str):
                    yield constant
