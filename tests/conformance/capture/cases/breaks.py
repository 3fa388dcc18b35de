"""Graph breaks: what Python does between two graphs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

import preheat

if TYPE_CHECKING:
    from torch import Tensor


def printing(x: Tensor) -> Tensor:
    y = torch.sin(x)
    print("hi", file=sys.stderr)  # noqa: T201 - the case is a print
    return torch.cos(y) * 2


def item(x: Tensor) -> Tensor:
    y = torch.sin(x)
    total = y.sum().item()
    return torch.cos(y) * total


def branching(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        return y.sin()
    return y.cos()


@preheat.target
def c10_gb_print() -> preheat.Spec:
    return preheat.Spec(printing, examples=[(torch.randn(8),)])


@preheat.target
def c11_gb_item() -> preheat.Spec:
    return preheat.Spec(item, examples=[(torch.randn(8),)])


@preheat.target
def c12_gb_branch() -> preheat.Spec:
    return preheat.Spec(branching, examples=[(torch.ones(8),), (-torch.ones(8),)])
