"""What is edited. A copy of the project has this file rewritten, again and again."""

import torch


def scaled(y: torch.Tensor) -> torch.Tensor:
    """A part of every program."""
    return y * 2.0
