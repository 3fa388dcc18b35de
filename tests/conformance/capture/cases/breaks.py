"""Graph breaks: what Python does between two graphs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

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


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        y = self.helper(y)
        return self.last(y)

    def helper(self, y: Tensor) -> Tensor:
        y = y + 1
        torch._dynamo.graph_break()
        return y * 2


def outer(x: Tensor) -> Tensor:
    def local(z: Tensor) -> Tensor:
        z = z + 1
        torch._dynamo.graph_break()
        return z * 3

    return local(x).sin()


@preheat.target
def c10_gb_print() -> preheat.Spec:
    return preheat.Spec(printing, examples=[(torch.randn(8),)])


@preheat.target
def c11_gb_item() -> preheat.Spec:
    return preheat.Spec(item, examples=[(torch.randn(8),)])


@preheat.target
def c12_gb_branch() -> preheat.Spec:
    return preheat.Spec(branching, examples=[(torch.ones(8),), (-torch.ones(8),)])


@preheat.target
def c13_gb_nested_module() -> preheat.Spec:
    return preheat.Spec(Nested(), examples=[(torch.randn(4, 8),)])


@preheat.target
def c14_gb_in_local_fn() -> preheat.Spec:
    return preheat.Spec(outer, examples=[(torch.randn(8),)])
