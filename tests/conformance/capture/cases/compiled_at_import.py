"""A function that is compiled where it is defined, which imports the compiler."""

from __future__ import annotations

import torch

import preheat


@torch.compile
def compiled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 7


@preheat.target
def c48_decorator_at_import() -> preheat.Spec:
    return preheat.Spec(compiled, examples=[(torch.randn(8),)])
