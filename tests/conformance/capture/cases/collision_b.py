"""Its twin has a function of the same name, in the same line."""

from __future__ import annotations

import torch


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(x) - 20
