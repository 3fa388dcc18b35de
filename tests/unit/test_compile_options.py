"""What ``torch.compile`` is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from preheat import Spec
from preheat.torch_internals.options import options_of, settled


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({}, {}),
        ({"mode": "reduce-overhead"}, {}),
        (
            {"mode": "max-autotune"},
            {"max_autotune": True, "coordinate_descent_tuning": True},
        ),
        ({"options": {"triton.cudagraphs": True, "max_autotune": True}}, {"max_autotune": True}),
    ],
)
def test_a_target_without_cuda_graphs_keeps_the_rest_of_its_mode(
    given: dict[str, Any], more: dict[str, Any]
) -> None:
    spec = settled(Spec(torch.sin, examples=[(torch.ones(2),)], cuda_graphs=False, **given))
    assert spec.mode is None
    assert spec.options == {"triton.cudagraphs": False, **more}
    settings = options_of(spec).inductor_settings()
    assert settings["triton.cudagraphs"] is False


def test_other_targets_are_left_as_they_are() -> None:
    kept = Spec(torch.sin, examples=[(torch.ones(2),)], mode="reduce-overhead")
    assert settled(kept) is kept
    eager = Spec(torch.sin, examples=[(torch.ones(2),)], backend="eager", cuda_graphs=False)
    assert settled(eager) is eager
