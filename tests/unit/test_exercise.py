"""What of a program's results is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from preheat import Spec
from preheat.errors import ProofError
from preheat.exercise import TOLERANCE, compare, exercise


class Cache:
    """As a model returns one: no container that is known, and it may lead back to itself."""

    def __init__(self, key: float) -> None:
        self.name = object()
        self.layers = [{"key": torch.full((2,), key)}]
        self.itself = self


def outcome(value: Any) -> Any:
    spec = Spec(lambda: value, examples=[()])
    return exercise(spec, spec.fn, spec.calls()[0])


@pytest.mark.parametrize(
    ("wanted", "other"),
    [
        (torch.ones(2), torch.zeros(2)),
        (np.ones(2, dtype=np.float32), np.zeros(2, dtype=np.float32)),
        ({"a": [np.float32(1)]}, {"a": [np.float32(2)]}),
        (Cache(1.0), Cache(2.0)),
        ((1, "a"), (1, "b")),
    ],
)
def test_a_difference_is_found(wanted: Any, other: Any) -> None:
    assert compare(outcome(wanted), outcome(wanted), TOLERANCE, "same") == 0
    with pytest.raises(ProofError):
        compare(outcome(wanted), outcome(other), TOLERANCE, "other")


def test_places_are_named() -> None:
    assert [where for where, _ in outcome(Cache(1.0)).tensors] == ["output.layers[0].key"]
