"""Build side: the record of a library, with the code that says what it may be called with."""

from __future__ import annotations

import inspect
import marshal
from typing import TYPE_CHECKING, Any

import torch

from preheat.image.alone import LibraryConstant, LibraryRecord
from preheat.image.constants import write_constants
from preheat.image.format import Weight
from preheat.image.values import UnportableError
from preheat.image.weights import digest_of
from preheat.torch_internals.aoti_capture import constant_tensors, input_values
from preheat.torch_internals.aoti_code import library_code

if TYPE_CHECKING:
    from preheat.torch_internals.aoti_capture import Exported


def library_record(made: Exported) -> LibraryRecord:
    """The record. Raises ``UnportableError`` for what a library cannot stand for."""
    from torch.export.graph_signature import InputKind, OutputKind

    signature = made.exported.graph_signature
    for spec in signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnportableError(f"the program changes {spec.target or 'an input'} in place")
    allowed = (
        InputKind.USER_INPUT,
        InputKind.PARAMETER,
        InputKind.BUFFER,
        InputKind.CONSTANT_TENSOR,
    )
    for given in signature.input_specs:
        if given.kind not in allowed:
            raise UnportableError(f"the program takes a {given.kind.name.lower()}")
    live = _live_tensors(made)
    values = tuple(Weight(name, digest_of(found)) for name, found in constant_tensors(made))
    _check_sources(made, values)
    constants, stored = [], {}
    for name, tensor in made.constants.items():
        if name in live:
            constants.append(_constant(name, _follow(made.program, name)))
        else:
            stored[name] = tensor
    data, (tensors,) = write_constants([stored])
    code = library_code(made, input_values(made.exported))
    capability = torch.cuda.get_device_capability() if made.device == "cuda" else ()
    return LibraryRecord(
        code=marshal.dumps(code),
        device=made.device,
        constants=tuple(constants),
        values=values,
        tensors=tensors,
        stored=data,
        capability=capability,
    )


def _live_tensors(made: Exported) -> frozenset[str]:
    """Parameters and buffers of the live module."""
    tensors = (
        *made.program.named_parameters(remove_duplicate=False),
        *made.program.named_buffers(remove_duplicate=False),
    )
    return frozenset(name for name, _ in tensors)


def _check_sources(made: Exported, values: tuple[Weight, ...]) -> None:
    """Every tensor that Dynamo's graph takes is an argument, a parameter, or one whose values are checked."""
    known = [*made.program.parameters(), *made.program.buffers()]
    known += [_follow(made.program, one.name) for one in values]
    first = next(iter(inspect.signature(made.function).parameters))
    for source, tensor in made.traced:
        inside = source.startswith(f"L[{first!r}]")
        if not isinstance(tensor, torch.Tensor) or (source.startswith("L[") and not inside):
            continue
        if not any(tensor is one for one in known):
            raise UnportableError(
                f"the values of {source} would be part of the library: make it a buffer of the module"
            )


def _follow(owner: Any, attribute: str) -> Any:
    for part in attribute.split("."):
        owner = getattr(owner, part, None)
    return owner


def _constant(attribute: str, tensor: torch.Tensor) -> LibraryConstant:
    return LibraryConstant(
        attribute=attribute,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        device=tensor.device.type,
    )
