"""Compiled graphs: generated code with its kernels, and what AOTAutograd does around it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError
from preheat.formats import CUSTOM
from preheat.image.constants import constants_in
from preheat.image.format import CONSTANTS_NAME, CppKernel, unmarshal
from preheat.image.kernels import load_cpp_kernel
from preheat.image.standins import DEVICE_INDEX, WRAPPER
from preheat.image.values import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preheat.image.alone import TracedGraphs
    from preheat.image.format import Graph, Image
    from preheat.image.surroundings import MutationRule, OutputRule, Surroundings, Training
    from preheat.store.protocol import ObjectOpener

_ALIGNMENT = 16
# Kinds whose graphs are what AOTAutograd leaves: the rest is in their surroundings.
_AFTER_AUTOGRAD = ("inductor", "aot_eager")


def make_graph(
    graph: Graph, kernels: Mapping[str, Any], constants: Mapping[str, torch.Tensor], device: int
) -> Callable[[list[Any]], Any]:
    """The compiled graph itself, which takes its arguments out of a list.

    ``kernels`` are the graph's by name, ``device`` the number of the GPU that it runs on. A call never
    keeps its arguments alive.
    """
    if graph.kind.startswith(CUSTOM):
        return _custom(graph)
    scope: dict[str, Any] = {
        "__name__": "preheat graph",
        DEVICE_INDEX: device,
        **{name: decode(value) for name, value in graph.names},
        **{name: WRAPPER[standin] for name, standin in graph.standins},
        **kernels,
        **constants,
    }
    exec(unmarshal(graph.code), scope)  # noqa: S102  verified bytes of a trusted store
    entry = scope.get(graph.entry)
    if entry is None:
        raise CorruptedError(f"A compiled graph does not define {graph.entry!r}.")
    if graph.captured is not None:
        from preheat.image.cuda_graphs import CapturedGraph

        entry = CapturedGraph(entry, graph.captured)
    if graph.aligned:
        entry = _with_aligned_inputs(entry, graph.aligned, frozenset(graph.mutated))
    compiled: Callable[[list[Any]], Any] = entry
    return compiled


def _custom(graph: Graph) -> Callable[[list[Any]], Any]:
    from preheat.kinds.interface import Place
    from preheat.kinds.registry import find

    code = find(graph.kind).load(graph.code, Place())
    code.post_load()
    return lambda args: code(*args)


def surrounded(graph: Graph, compiled: Sequence[Callable[[list[Any]], Any]], index: int) -> Any:
    """The function that compiled bytecode calls for graph ``index`` of all ``compiled`` ones.

    Raises ``CorruptedError`` for a backward graph that is not there.
    """
    around, training = graph.surroundings, graph.training
    if graph.kind not in _AFTER_AUTOGRAD:
        # It is called as bytecode calls it, and autograd looks on.
        bare: Any = compiled[index]
        return lambda *args: bare(list(args))
    run = _inference if training is None else _trained(training, compiled)
    entry: Any = compiled[index]
    if around.without_autocast:
        entry = _without_autocast(entry)
    plain = not (around.versions or around.mutations or around.outputs)
    if plain and around.grad_after is None and not around.arguments:
        return run(entry)
    return _with_epilogue(run(entry), around)


def _trained(
    training: Training, compiled: Sequence[Callable[[list[Any]], Any]]
) -> Callable[[Any], Callable[..., Any]]:
    from preheat.image.training import differentiable

    if not 0 <= training.backward < len(compiled):
        raise CorruptedError(f"The image has no backward graph {training.backward}.")
    backward = compiled[training.backward]
    if training.without_autocast:
        backward = _without_autocast(backward)
    return lambda forward: differentiable(forward, backward, training)


def _inference(compiled: Any) -> Callable[..., Any]:
    """Gradients are off while an inference graph runs, also where inputs require them."""
    is_enabled = torch.is_grad_enabled
    set_enabled = torch._C._set_grad_enabled

    def run(*args: Any) -> Any:
        if not is_enabled():
            return compiled(list(args))
        set_enabled(False)
        try:
            return compiled(list(args))
        finally:
            set_enabled(True)

    return run


def _without_autocast(compiled: Any) -> Any:
    guard = torch._C._DisableAutocast

    def run(args: list[Any]) -> Any:
        with guard():
            return compiled(args)

    return run


def _with_epilogue(run_graph: Callable[..., Any], around: Surroundings) -> Callable[..., Any]:
    bases = {rule.index for rule in around.mutations}
    bases |= {rule.base for rule in around.outputs if rule.kind in ("input", "view")}
    changed = len(around.mutations)

    def run(*args: Any) -> Any:
        if around.arguments:
            args = tuple(args[index] for index in around.arguments)
        inputs = {index: args[index] for index in bases}
        if around.versions:
            torch.autograd.graph.increment_version(args[index] for index in around.versions)
        outputs = list(run_graph(*args))
        del args
        for rule, updated in zip(around.mutations, outputs[:changed], strict=True):
            _bring_up_to_date(inputs[rule.index], updated, rule)
        outputs = outputs[changed:]
        if around.outputs:
            outputs = [
                _replayed(rule, output, inputs, outputs)
                for rule, output in zip(around.outputs, outputs, strict=False)
            ]
        if around.grad_after is not None:
            torch._C._set_grad_enabled(around.grad_after)
        return outputs

    return run


def _bring_up_to_date(value: torch.Tensor, updated: torch.Tensor, rule: MutationRule) -> None:
    if rule.kind == "storage":
        with torch.no_grad():
            value.set_(updated)  # type: ignore[call-overload]
        return
    if rule.kind in ("metadata", "both"):
        value.as_strided_(updated.size(), updated.stride(), updated.storage_offset())
    if rule.kind in ("data", "both"):
        if rule.leaf and value.requires_grad:
            value.detach().copy_(updated)
        else:
            value.copy_(updated)


def _replayed(
    rule: OutputRule, output: Any, inputs: Mapping[int, Any], outputs: Sequence[Any]
) -> Any:
    if rule.kind == "plain":
        return output
    if rule.kind == "input":
        return inputs[rule.base]
    base = inputs[rule.base] if rule.kind == "view" else outputs[rule.base]
    return view_of(base, output, rule.requires_grad)


def view_of(base: torch.Tensor, like: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A view of ``base`` that is where ``like`` is, so that autograd and in-place changes see it."""
    if base.is_complex() and not like.is_complex():
        base = torch.view_as_real(base)
    elif like.is_complex() and not base.is_complex():
        base = torch.view_as_complex(base)
    view = base.as_strided(like.size(), like.stride(), like.storage_offset())
    if base.requires_grad and not requires_grad:
        view = view.detach()
    elif requires_grad and not base.requires_grad:
        view.requires_grad_(True)
    return view if view.dtype == like.dtype else view.view(like.dtype)


def _with_aligned_inputs(compiled: Any, checked: Sequence[int], mutated: frozenset[int]) -> Any:
    """Kernels assume that these inputs start at a multiple of 16 bytes: others are copied.

    What a kernel writes to a copy is written back.
    """
    copied_back = [index for index in checked if index in mutated]

    def run(args: list[Any]) -> Any:
        originals: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in checked:
            value = args[index]
            if isinstance(value, torch.Tensor) and value.data_ptr() % _ALIGNMENT:
                args[index] = _aligned(value)
                if index in copied_back:
                    originals.append((value, args[index]))
        outputs = compiled(args)
        for original, copy in originals:
            original.copy_(copy)
        return outputs

    return run


def _aligned(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; overlapping and broadcast dimensions stay so."""
    needed = sum(
        (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    flat = torch.as_strided(value, (needed + 1,), (1,)).clone()
    return torch.as_strided(flat, value.size(), value.stride())


def load_graphs(
    image: Image, opener: ObjectOpener, device: int, hooked: bool
) -> list[Callable[..., Any]]:
    """All graphs of an image, with their kernels and constants from the package.

    ``hooked``: the frame evaluation hook is on while the program runs; it must not look into graphs.
    Raises ``CorruptedError`` and ``IncompatibleError`` for what cannot be loaded here.
    """
    constants = _constants(image, opener)
    compiled = [
        make_graph(graph, _kernels(graph, opener, device), values, device)
        for graph, values in zip(image.graphs, constants, strict=True)
    ]
    graphs = [surrounded(graph, compiled, index) for index, graph in enumerate(image.graphs)]
    if not hooked:
        return graphs
    from preheat.image.nested import without_hook

    return [without_hook(graph) for graph in graphs]


def load_traced(traced: TracedGraphs, device: int) -> Callable[..., Any]:
    """One traced graph that is no part of an image. Raises as ``load_graphs`` does."""
    constants = constants_in(
        bytearray(traced.constants), [graph.constants for graph in traced.graphs]
    )
    compiled = [
        make_graph(graph, {}, values, device)
        for graph, values in zip(traced.graphs, constants, strict=True)
    ]
    call: Callable[..., Any] = surrounded(traced.graphs[0], compiled, 0)
    return call


def _constants(image: Image, opener: ObjectOpener) -> list[dict[str, torch.Tensor]]:
    records = [graph.constants for graph in image.graphs]
    if not any(records):
        return [{} for _ in records]
    from preheat.image.constants import read_constants

    return read_constants(opener, CONSTANTS_NAME, records)


def _kernels(graph: Graph, opener: ObjectOpener, device: int) -> dict[str, Any]:
    loaded = {}
    for kernel in graph.kernels:
        opening = functools.partial(opener.open, kernel.object)
        digest = kernel.object.rpartition("/")[2]
        if isinstance(kernel, CppKernel):
            loaded[kernel.name] = load_cpp_kernel(opening, digest, kernel.entry)
        else:
            from preheat.image.triton import load_triton_kernel

            loaded[kernel.name] = load_triton_kernel(kernel, opening, digest, device)
    return loaded
