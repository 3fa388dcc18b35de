"""Ending with whoever started this process: what it makes is worth nothing without them.

A daemon that is killed cannot end its children any more, so each of them asks the kernel for it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def end_with_parent() -> None:
    """From now on this process is killed when its parent ends, also while either is stopped.

    The kernel's parent is the *thread* that started this process: call it only in what is started from
    a thread that lives as long as its process, as the daemon's event loop does. It holds for this process
    alone: children do not inherit it, and a program that is executed keeps it.

    Not promised: that the parent has not ended before; ask ``is_forsaken`` afterwards. Nothing happens
    on systems other than Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def is_forsaken(descriptor: int) -> bool:
    """Whether nobody can read any more what is written to a pipe or socket.

    That is asked instead of the parent's number, which means nothing in another pid namespace and
    may be that of a new process. Anything else than a pipe or socket is never forsaken.
    """
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))


def live_with_parent(descriptor: int) -> None:
    """End with the parent, or at once when it is gone already: nobody reads ``descriptor``."""
    end_with_parent()
    if is_forsaken(descriptor):
        os._exit(1)
