"""Global modes of a thread: gradients, inference mode, autocast."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from preheat.image.format import Modes

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEVICES = ("cpu", "cuda")


def current_modes() -> Modes:
    """The modes that are on now."""
    autocast = tuple(
        (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in _DEVICES
    )
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)


@contextlib.contextmanager
def entered(modes: Modes) -> Iterator[None]:
    """The modes that were on when a variant was compiled, inside the block.

    A tensor guard's dispatch keys depend on them while the guard is made.
    """
    with contextlib.ExitStack() as stack:
        if modes.inference != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for device, enabled, dtype in modes.autocast:
            if enabled == torch.is_autocast_enabled(device) and not enabled:
                continue
            kind = getattr(torch, dtype.removeprefix("torch."))
            stack.enter_context(torch.autocast(device, dtype=kind, enabled=enabled))
        yield
