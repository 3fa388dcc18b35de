"""What AOTAutograd does around a graph, as rules that a lean image can hold."""

from __future__ import annotations

from typing import Any

from preheat.image.surroundings import MutationRule, OutputRule, Surroundings
from preheat.image.values import UnportableError


def surroundings_of(metadata: Any, without_autocast: bool, keep_mutations: bool) -> Surroundings:
    """What has to happen around an inference graph.

    The rules are AOTAutograd's own (``_aot_autograd/runtime_wrappers.py``). Raises
    ``UnportableError`` for what has no rule here.
    """
    if metadata.tokens:
        raise UnportableError("it orders side effects by tokens")
    versions = tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)
    mutations = tuple(
        rule
        for index in metadata.mutated_inp_runtime_indices
        if (rule := _mutation_rule(index, metadata.input_info[index])) is not None
    )
    if len(mutations) != len(metadata.mutated_inp_runtime_indices):
        raise UnportableError("an input is returned as changed although nothing changed")
    outputs: tuple[OutputRule, ...] = ()
    if metadata.num_outputs_aliased > 0:
        outputs = tuple(_output_rule(info, metadata) for info in metadata.output_info)
    return Surroundings(
        without_autocast=without_autocast,
        versions=versions if keep_mutations else (),
        mutations=mutations,
        outputs=outputs,
        grad_after=metadata.grad_enabled_mutation,
    )


def _mutation_rule(index: int, info: Any) -> MutationRule | None:
    if not info.mutates_data and not info.mutates_metadata:
        return None
    if info.mutates_storage_metadata:
        kind = "storage"
    elif not info.mutates_data:
        kind = "metadata"
    else:
        kind = "both" if info.mutates_metadata else "data"
    return MutationRule(index, kind, bool(info.is_leaf))


def _output_rule(info: Any, metadata: Any) -> OutputRule:
    from torch._functorch._aot_autograd.schemas import OutputType

    kind = info.output_type
    if kind in (
        OutputType.non_alias,
        OutputType.unsafe_view_alias,
        OutputType.custom_function_view,
    ):
        return OutputRule("plain")
    if kind == OutputType.is_input:
        return OutputRule("input", info.base_idx)
    if kind == OutputType.alias_of_input:
        return OutputRule("view", info.base_idx, info.requires_grad)
    if kind in (
        OutputType.alias_of_intermediate,
        OutputType.alias_of_intermediate_save_as_output,
    ):
        base = len(metadata.output_info) + info.base_idx
        return OutputRule("inner view", base, info.requires_grad)
    if kind == OutputType.alias_of_intermediate_base_is_user_output:
        return OutputRule("inner view", info.base_idx, info.requires_grad)
    raise UnportableError(f"an output is a {kind.name}")
