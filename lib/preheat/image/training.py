"""A forward graph joined to its backward graph, as one function that autograd knows.

What torch's AOTAutograd does at run time (``AOTDispatchAutograd`` in its ``runtime_wrappers.py``), for
plain tensors: what it does beyond that is refused when the image is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.image.surroundings import Tangent, Training

_WITHIN_TRANSFORM = (
    "A compiled backward pass cannot run within torch.func transformations (vmap, grad, vjp). Compile "
    "the transformation with the program, or leave the backward pass uncompiled."
)
_DETERMINISTIC = (
    "torch.use_deterministic_algorithms(True) is on in the backward pass and was off when it was "
    "compiled. Use the same setting in the forward pass."
)
_TWICE = "torch.compile supports no second backward pass through a first one (double backward)."


class _Alias:
    """Hides a view of an input or of another result from autograd, which gives views no meaning here."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def differentiable(
    forward: Callable[[list[Any]], Any], backward: Callable[[list[Any]], Any], training: Training
) -> Callable[..., list[Any]]:
    """A function of the forward graph's arguments that gives its results, with gradients.

    Gradients are on while it runs: a part of the program may have turned them on by itself.
    """
    apply: Any = _function(forward, backward, training).apply
    detached = training.detached

    def run(*args: Any) -> list[Any]:
        if detached:
            mutable = list(args)
            for index in detached:
                if isinstance(mutable[index], torch.Tensor):
                    mutable[index] = mutable[index].detach()
            args = tuple(mutable)
            del mutable
        replays_views = torch._C._is_view_replay_enabled()
        torch._C._set_view_replay_enabled(True)
        try:
            with torch.enable_grad():
                outputs = apply(*args)
        finally:
            torch._C._set_view_replay_enabled(replays_views)
        return [one.tensor if type(one) is _Alias else one for one in outputs]

    return run


def _function(
    forward_graph: Callable[[list[Any]], Any],
    backward_graph: Callable[[list[Any]], Any],
    training: Training,
) -> type[torch.autograd.Function]:
    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            outputs = list(forward_graph(list(args)))
            del args
            results = _keep(ctx, outputs, training)
            for index in training.unsafe_views:
                results[index] = torch.ops.aten._unsafe_view(results[index], results[index].shape)
            for index in training.aliases:
                results[index] = _Alias(results[index])
            constant = (results[index] for index in training.constant)
            ctx.mark_non_differentiable(*(one for one in constant if isinstance(one, torch.Tensor)))
            ctx._materialize_non_diff_grads = False
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            args = _backward_arguments(ctx, gradients, training)
            del gradients
            if torch.is_grad_enabled():
                return _once(lambda: _run(ctx, args), args)
            return _run(ctx, args)

    def _run(ctx: Any, args: list[Any]) -> tuple[Any, ...]:
        ctx.maybe_clear_saved_tensors()
        return tuple(backward_graph(args))

    return Compiled


def _keep(ctx: Any, outputs: list[Any], training: Training) -> list[Any]:
    """Keep what the backward pass needs; the results are left."""
    results, kept = outputs[: training.returned], outputs[training.returned :]
    tensors = len(kept) - training.numbers
    ctx.numbers = kept[tensors:]
    # A view would keep its base and the base's history alive.
    saved = [one.detach() if one._is_view() else one for one in kept[:tensors]]
    checked = tensors - training.unchecked
    ctx.save_for_backward(*saved[:checked])
    ctx.unchecked = saved[checked:]
    return results


def _backward_arguments(ctx: Any, gradients: tuple[Any, ...], training: Training) -> list[Any]:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(_WITHIN_TRANSFORM)
    if training.deterministic is False and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(_DETERMINISTIC)
    return [
        *ctx.numbers,
        *ctx.saved_tensors,
        *ctx.unchecked,
        *(_as_expected(gradients[one.position], one) for one in training.tangents),
    ]


def _as_expected(gradient: Any, tangent: Tangent) -> Any:
    """The gradient laid out in memory as the graph was compiled for."""
    if not isinstance(gradient, torch.Tensor):
        return gradient
    if type(gradient) is not torch.Tensor and not isinstance(gradient, torch.nn.Parameter):
        raise RuntimeError(
            f"A gradient is a {type(gradient).__name__}; the backward pass was compiled for plain tensors."
        )
    if tangent.memory_format:
        wanted = getattr(torch, tangent.memory_format)
        if gradient.is_contiguous(memory_format=wanted):
            return gradient
        return gradient.contiguous(memory_format=wanted)
    if tuple(gradient.shape) == tangent.shape and gradient.stride() == tangent.stride:
        return gradient
    laid_out = torch.empty_strided(
        tangent.shape, tangent.stride, dtype=gradient.dtype, device=gradient.device
    )
    laid_out.copy_(gradient)
    return laid_out


def _once(run: Callable[[], tuple[Any, ...]], args: list[Any]) -> Any:
    """Gradients that are connected, so that another backward pass through them says what is wrong."""

    class CompiledBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *unused: Any) -> Any:
            return run()

        @staticmethod
        def backward(ctx: Any, *unused: Any) -> Any:
            raise RuntimeError(_TWICE)

    inputs: list[Any] = args
    if not any(one.requires_grad for one in args if isinstance(one, torch.Tensor)):
        inputs = [torch.empty(0, requires_grad=True), *args]
    return CompiledBackward.apply(*inputs)  # type: ignore[no-untyped-call]
