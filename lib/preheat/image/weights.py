"""Frozen parameters: they are part of the compiled code, so a worker's must be the very same.

A graph that was compiled with frozen parameters holds what was computed from them. The image records a
digest of every parameter and buffer; a worker compares them at load, and at each call that no tensor was
replaced or changed in place since.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError
from preheat.image.format import Weight
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def record_weights(module: torch.nn.Module) -> tuple[Weight, ...]:
    """The digest of each parameter and buffer."""
    return tuple(Weight(name, digest_of(tensor)) for name, tensor in _tensors(module))


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from itertools.chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )


def digest_of(tensor: torch.Tensor) -> str:
    """The digest of a tensor's dtype, shape and values."""
    data = tensor.detach().cpu().contiguous()
    about = f"{data.dtype} {tuple(data.shape)}\n".encode()
    content: Any = data.flatten().view(torch.uint8).numpy() if data.numel() else b""
    return hashlib.sha256(about + bytes(content)).hexdigest()


class SameWeights:
    """A check at each call. Raises ``IncompatibleError`` when the weights are others already."""

    def __init__(self, module: Any, weights: Sequence[Weight]) -> None:
        recorded = {weight.name: weight.sha256 for weight in weights}
        found = dict(_tensors(module)) if isinstance(module, torch.nn.Module) else {}
        for name in sorted({*recorded, *found}):
            if name not in found or digest_of(found[name]) != recorded.get(name):
                raise IncompatibleError(
                    reasons=[
                        Reason(
                            kind="weights_differ",
                            symbol=name,
                            detail="the package was built with other values, and holds them",
                        )
                    ]
                )
        self._places = [
            (place, key, tensor, tensor._version)
            for owner in module.modules()
            for place in (owner._parameters, owner._buffers)
            for key, tensor in place.items()
            if tensor is not None
        ]

    def __call__(self, _: Any) -> bool:
        return all(
            place.get(key) is tensor and tensor._version == version
            for place, key, tensor, version in self._places
        )
