"""Comparing what a program gave with what eager gives."""

from __future__ import annotations

import pytest
import torch

from preheat.errors import ProofError
from preheat.exercise import TOLERANCE, Outcome, compare, compare_shapes


class Marked(torch.Tensor):
    """A tensor of a user's own class."""


class Other(torch.Tensor):
    """Another one."""


def outcome(*tensors: torch.Tensor) -> Outcome:
    return Outcome(tuple((f"output[{i}]", one) for i, one in enumerate(tensors)), (), False)


@pytest.mark.parametrize("got", [torch.ones(2), torch.ones(2).as_subclass(Other)])
def test_a_tensor_of_another_class_is_another_answer(got: torch.Tensor) -> None:
    wanted = outcome(torch.ones(2).as_subclass(Marked))
    assert compare(wanted, wanted, TOLERANCE, "example 0") == 0
    with pytest.raises(ProofError, match=r"example 0: output\[0\] is a .*Marked in eager"):
        compare(wanted, outcome(got), TOLERANCE, "example 0")
    with pytest.raises(ProofError, match="Marked in eager"):
        compare_shapes(wanted, outcome(got), "example 0")


def test_a_class_that_torch_compile_gives_is_no_other_answer() -> None:
    wanted, got = outcome(torch.ones(2).as_subclass(Marked)), outcome(torch.ones(2))
    classes = {"output[0]": "torch.Tensor"}
    assert compare(wanted, got, TOLERANCE, "example 0", classes) == 0
    compare_shapes(wanted, got, "example 0", classes)
    with pytest.raises(ProofError, match=r"a torch\.Tensor after torch\.compile"):
        compare(wanted, wanted, TOLERANCE, "example 0", classes)


def test_a_parameter_is_a_tensor() -> None:
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert compare(outcome(parameter.detach()), outcome(parameter), TOLERANCE, "example 0") == 0
    assert compare(outcome(parameter), outcome(parameter.detach()), TOLERANCE, "example 0") == 0


def test_values_beyond_tolerance_and_other_dtypes_are_told() -> None:
    wanted = outcome(torch.ones(2))
    with pytest.raises(ProofError, match=r"differs from eager by up to 0\.5"):
        compare(wanted, outcome(torch.tensor([1.0, 1.5])), TOLERANCE, "example 0")
    with pytest.raises(ProofError, match="float64"):
        compare(wanted, outcome(torch.ones(2).double()), TOLERANCE, "example 0")
    with pytest.raises(ProofError, match="another structure"):
        compare(wanted, outcome(), TOLERANCE, "example 0")
