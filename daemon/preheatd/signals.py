"""Signals as calls, for as long as a block runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RELOAD_SIGNALS = (signal.SIGHUP,)


def on_stop_signals(
    call: Callable[[signal.Signals], object],
) -> contextlib.AbstractContextManager[None]:
    """Call ``call`` in the running loop for each stop signal, in place of what it did before."""
    return _on_signals(STOP_SIGNALS, call)


def on_reload_signal(
    call: Callable[[signal.Signals], object],
) -> contextlib.AbstractContextManager[None]:
    """The same for the signal that asks to read the configuration again."""
    return _on_signals(RELOAD_SIGNALS, call)


@contextlib.contextmanager
def _on_signals(
    numbers: tuple[signal.Signals, ...], call: Callable[[signal.Signals], object]
) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    placed = []
    for number in numbers:
        # Not possible outside of the main thread: whoever runs a loop there has other ways to stop it.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call, number)
            placed.append(number)
    try:
        yield
    finally:
        for number in placed:
            loop.remove_signal_handler(number)
