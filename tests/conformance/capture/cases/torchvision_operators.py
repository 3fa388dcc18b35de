"""timm and transformers import torchvision; its compiled part need not fit the torch under test."""

from __future__ import annotations

import sys

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for kind in ("nms", "qnms"):
        library.define(f"{kind}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
