"""A forward graph joined to a backward graph: what autograd gets, from graphs written by hand."""

from __future__ import annotations

import types
from typing import Any

import msgspec
import pytest
import torch

from preheat.image.surroundings import Tangent, Training
from preheat.image.training import differentiable
from preheat.image.values import UnportableError
from preheat.torch_internals.training import training_of
from support.images import TRAINING


def changed(**values: Any) -> Training:
    return msgspec.structs.replace(TRAINING, **values)


def square(args: list[Any]) -> list[Any]:
    (x,) = args
    args.clear()
    return [x * x, x]


def of_square(args: list[Any]) -> list[Any]:
    x, gradient = args
    args.clear()
    return [2 * x * gradient]


def test_gradients_and_what_is_kept() -> None:
    run = differentiable(square, of_square, TRAINING)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with torch.no_grad():  # a part of the program may have turned gradients on by itself
        (y,) = run(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    assert torch.is_grad_enabled()


def test_detached_inputs_hidden_aliases_and_results_without_gradients() -> None:
    def forward(args: list[Any]) -> list[Any]:
        x, w = args
        return [x * w, x.view(-1), (x > 0), w, 7]

    def backward(args: list[Any]) -> list[Any]:
        number, w, gradient = args
        assert number == 7
        return [gradient * w, None]

    training = changed(
        returned=3,
        numbers=1,
        detached=(1,),
        aliases=(1,),
        constant=(1, 2),
        tangents=TRAINING.tangents,
    )
    run = differentiable(forward, backward, training)
    x, w = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    y, alias, positive = run(x, w)
    assert (y.requires_grad, positive.requires_grad) == (True, False)
    assert alias.data_ptr() == x.data_ptr()
    y.sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), w.grad) == ([3.0, 3.0], None)


def test_a_version_is_checked_where_it_counts() -> None:
    for unchecked, fails in ((0, True), (1, False)):
        run = differentiable(square, of_square, changed(unchecked=unchecked))
        base = torch.ones(2, requires_grad=True)
        x = base * 1
        (y,) = run(x)
        x.add_(1)
        if fails:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()


def test_a_gradient_is_laid_out_as_the_graph_expects() -> None:
    seen = []

    def backward(args: list[Any]) -> list[Any]:
        seen.append((tuple(args[-1].shape), args[-1].stride()))
        return [args[-1]]

    x = torch.ones(2, 3, requires_grad=True)
    for tangent in (Tangent(0, "", (2, 3), (1, 2)), Tangent(0, "contiguous_format")):
        run = differentiable(square, backward, changed(tangents=(tangent,)))
        (y,) = run(x)
        y.backward(torch.arange(6.0).view(2, 3))
    assert seen == [((2, 3), (1, 2)), ((2, 3), (3, 1))]
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def test_what_a_backward_pass_cannot_do_is_said() -> None:
    run = differentiable(square, of_square, changed(deterministic=False))
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(run(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
    (y,) = run(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


METADATA = {
    "tokens": {},
    "num_backward_tokens": 0,
    "num_graphsafe_rng_states": 0,
    "is_rng_op_functionalized": False,
    "num_opaque_objects_saved_for_bw": None,
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw": [],
    "input_info": [],
    "output_info": [],
    "mutated_inp_runtime_indices": [],
    "num_unsafe_view_outputs": 0,
    "num_forward_returns": 0,
    "num_tensors_saved_with_no_vc_check": None,
    "num_symints_saved_for_bw": None,
    "num_outputs_aliased": 0,
    "num_outputs": 0,
    "num_intermediate_bases": 0,
    "subclass_tangent_meta": [],
    "deterministic": None,
}


def described(given: dict[str, Any] | None = None, **metadata: Any) -> Training:
    """What is recorded of a forward graph that torch describes in this way."""
    spec = {
        "maybe_subclass_meta": None,
        "backward_state_indices": [],
        "disable_amp": False,
        "indices_of_inps_to_detach": [2],
        "fw_metadata": types.SimpleNamespace(**{**METADATA, **metadata}),
        **(given or {}),
    }
    return training_of((types.SimpleNamespace(**spec),), {})


def test_both_ways_of_torch_to_hand_over_the_parts_are_read() -> None:
    assert described().detached == (2,)
    arguments = (None, None, None, 0, [], True, [1, 3], None, None)
    metadata = types.SimpleNamespace(**METADATA)
    made = training_of(arguments, {"fw_metadata": metadata, "try_save_cache_entry": None})
    assert (made.detached, made.without_autocast) == ((1, 3), True)


@pytest.mark.parametrize(
    ("given", "metadata", "why"),
    [
        ({"maybe_subclass_meta": object()}, {}, "tensor subclass"),
        ({"backward_state_indices": [0]}, {}, "compiled autograd"),
        ({}, {"tokens": {"a": 1}}, "tokens"),
        ({}, {"num_backward_tokens": 1}, "tokens"),
        ({}, {"num_graphsafe_rng_states": 1}, "random numbers"),
        ({}, {"is_rng_op_functionalized": True}, "random numbers"),
        ({}, {"num_opaque_objects_saved_for_bw": 1}, "opaque"),
        ({}, {"indices_of_inputs_that_requires_grad_with_mutations_in_bw": [0]}, "changes an input"),
        ({}, {"input_info": [types.SimpleNamespace(mutates_storage_metadata=True)]}, "storage"),
        ({}, {"subclass_tangent_meta": [object()]}, "other gradients"),
    ],
)  # fmt: skip
def test_what_has_no_record_is_refused(
    given: dict[str, Any], metadata: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnportableError, match=f"it is trained, and .*{why}"):
        described(given, **metadata)


def test_hooks_of_saved_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch._aot_autograd import runtime_wrappers

    monkeypatch.setattr(runtime_wrappers, "_should_disable_saved_tensors_hooks", lambda: True)
    with pytest.raises(UnportableError, match="hooks of saved tensors"):
        described()
