"""Options of ``torch.compile``."""

from __future__ import annotations

from typing import Any

import torch

import preheat
from cases.modules import Plain


def plain_with(**options: Any) -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)], **options)


@preheat.target
def c41_freezing() -> preheat.Spec:
    example = (torch.randn(4, 16),)
    return preheat.Spec(Plain().eval(), examples=[example], options={"freezing": True})


@preheat.target
def c42_max_autotune() -> preheat.Spec:
    return plain_with(mode="max-autotune")


@preheat.target
def c43_reduce_overhead() -> preheat.Spec:
    return plain_with(mode="reduce-overhead")


@preheat.target
def c44_options() -> preheat.Spec:
    return plain_with(options={"epilogue_fusion": False, "max_fusion_size": 8})


@preheat.target
def c45_fullgraph() -> preheat.Spec:
    return plain_with(fullgraph=True)


@preheat.target
def c46_backend_eager() -> preheat.Spec:
    return plain_with(backend="eager")


@preheat.target
def c47_backend_aot_eager() -> preheat.Spec:
    return plain_with(backend="aot_eager")
