"""Build side: how AOTAutograd joins a forward graph to its backward graph, as a record of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from preheat.image.surroundings import Tangent, Training
from preheat.image.values import UnportableError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where ``AOTDispatchAutograd.post_compile`` of torch 2.11 has what later releases put into one record.
_POSITIONS = {
    "maybe_subclass_meta": 2,
    "backward_state_indices": 4,
    "disable_amp": 5,
    "indices_of_inps_to_detach": 6,
}


def training_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Training:
    """The record of one call of ``AOTDispatchAutograd.post_compile``, without the backward's position.

    Raises ``UnportableError`` for what ``preheat.image.training`` does not do.
    """
    metadata = _given("fw_metadata", args, kwargs)
    for why, applies in _beyond(metadata, args, kwargs):
        if applies:
            raise UnportableError(f"it is trained, and {why}")
    changed = len(metadata.mutated_inp_runtime_indices)
    unsafe = metadata.unsafe_view_out_indices if metadata.num_unsafe_view_outputs else ()
    return Training(
        backward=-1,
        returned=metadata.num_forward_returns,
        unchecked=metadata.num_tensors_saved_with_no_vc_check or 0,
        numbers=metadata.num_symints_saved_for_bw or 0,
        detached=tuple(_given("indices_of_inps_to_detach", args, kwargs)),
        unsafe_views=tuple(changed + index for index in unsafe),
        aliases=tuple(_aliases(metadata, changed)),
        constant=tuple(_constant(metadata, changed)),
        tangents=tuple(_tangents(metadata, changed)),
        deterministic=metadata.deterministic,
        without_autocast=bool(_given("disable_amp", args, kwargs)),
    )


def _given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in kwargs:
        return kwargs[name]
    if len(args) == 1:
        return getattr(args[0], name)
    return args[_POSITIONS[name]]


def _beyond(
    metadata: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, bool]]:
    """What would need more than the record says."""
    from torch._functorch._aot_autograd.runtime_wrappers import _should_disable_saved_tensors_hooks

    yield (
        "it takes or returns a tensor subclass",
        _given("maybe_subclass_meta", args, kwargs) is not None,
    )
    yield "compiled autograd runs it", bool(_given("backward_state_indices", args, kwargs))
    yield "it orders side effects by tokens", bool(metadata.tokens or metadata.num_backward_tokens)
    yield (
        "both passes draw the same random numbers",
        bool(metadata.num_graphsafe_rng_states or metadata.is_rng_op_functionalized),
    )
    yield "its backward pass keeps opaque objects", bool(metadata.num_opaque_objects_saved_for_bw)
    yield (
        "its backward pass changes an input in place",
        bool(metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
    )
    yield "hooks of saved tensors are part of its graphs", _should_disable_saved_tensors_hooks()
    yield (
        "an input's storage is replaced",
        any(info.mutates_storage_metadata for info in metadata.input_info),
    )


def _aliases(metadata: Any, changed: int) -> Iterator[int]:
    for position, index in enumerate(metadata.mutated_inp_runtime_indices):
        info = metadata.input_info[index]
        if info.mutates_metadata and not info.mutates_data:
            yield position
    if metadata.num_outputs_aliased:
        yield from (changed + index for index in metadata.aliased_out_indices)


def _constant(metadata: Any, changed: int) -> Iterator[int]:
    """Results through which no gradient flows; bases of intermediate views always have one."""
    from torch._functorch._aot_autograd.schemas import MutationType

    mutated = (
        info for info in metadata.input_info if info.mutation_type == MutationType.MUTATED_OUT_GRAPH
    )
    known = [*mutated, *metadata.output_info][: changed + metadata.num_outputs]
    return (index for index, info in enumerate(known) if not info.requires_grad)


def _tangents(metadata: Any, changed: int) -> Iterator[Tangent]:
    positions = tuple(_with_gradients(metadata, changed))
    formats = metadata.subclass_tangent_meta
    if len(positions) != len(formats):
        raise UnportableError("it is trained, and torch describes other gradients than it takes")
    for position, given in zip(positions, formats, strict=True):
        expected = given.memory_format
        if expected is None:
            raise UnportableError("it is trained, and a gradient has no memory format")
        if expected.memory_format is not None:
            name = str(expected.memory_format).removeprefix("torch.")
            yield Tangent(position, name)
        else:
            shape = tuple(int(size) for size in expected.size)
            yield Tangent(position, "", shape, tuple(int(step) for step in expected.stride))


def _with_gradients(metadata: Any, changed: int) -> Iterator[int]:
    """Positions of the results whose gradients the backward graph takes."""
    from torch._functorch._aot_autograd.schemas import OutputType

    for position, index in enumerate(metadata.mutated_inp_runtime_indices):
        info = metadata.input_info[index]
        if info.mutates_data and info.requires_grad:
            yield position
    plain = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    for index, info in enumerate(metadata.output_info):
        # torch 2.11 has no word of its own for what the backward pass needs.
        needed = getattr(info, "requires_grad_for_backward", info.requires_grad)
        if info.output_type in plain and issubclass(info.raw_type, torch.Tensor) and needed:
            yield changed + index
    first = changed + metadata.num_outputs
    yield from range(first, first + metadata.num_intermediate_bases)
