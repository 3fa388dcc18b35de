"""Attention that is generated. In a module of its own: importing it imports the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.attention.flex_attention import flex_attention

import preheat

if TYPE_CHECKING:
    from torch import Tensor


def score(value: Tensor, _b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return value + (q - k)


def flexible(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k, v, score_mod=score)


@preheat.target
def c36_flex_attention() -> preheat.Spec:
    example = tuple(torch.randn(1, 2, 128, 16) for _ in range(3))
    return preheat.Spec(flexible, examples=[example])
