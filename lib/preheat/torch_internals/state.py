"""Global modes of a thread: gradients, inference mode, autocast."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from preheat.torch_internals.payload import GlobalState

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEVICES = ("cpu", "cuda")


def current_state() -> GlobalState:
    """The modes that are on now."""
    import torch

    autocast = tuple(
        (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        for device in _DEVICES
    )
    return GlobalState(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)


@contextlib.contextmanager
def entered(state: GlobalState) -> Iterator[None]:
    """Turn the modes of ``state`` on inside the block."""
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(state.inference))
        stack.enter_context(torch.set_grad_enabled(state.grad))
        for device, enabled, dtype in state.autocast:
            if enabled == torch.is_autocast_enabled(device) and not enabled:
                continue
            kind = getattr(torch, dtype.removeprefix("torch."))
            stack.enter_context(torch.autocast(device, dtype=kind, enabled=enabled))
        yield
