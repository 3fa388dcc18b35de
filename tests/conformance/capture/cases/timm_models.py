"""Image models of timm, small and with random weights."""

from __future__ import annotations

from typing import Any

import cases.torchvision_operators  # noqa: F401 - before timm looks for torchvision

# isort: split
import timm
import torch

import preheat


def model_of(name: str, **options: Any) -> preheat.Spec:
    model = timm.create_model(name, **options).eval()
    return preheat.Spec(model, examples=[(torch.randn(1, 3, 64, 64),)])


@preheat.target
def m01_resnet18() -> preheat.Spec:
    return model_of("resnet18")


@preheat.target
def m02_vit_tiny() -> preheat.Spec:
    return model_of("vit_tiny_patch16_224", img_size=64, depth=3)


@preheat.target
def m03_convnext() -> preheat.Spec:
    return model_of("convnext_atto")


@preheat.target
def m04_efficientnet() -> preheat.Spec:
    return model_of("efficientnet_b0")
