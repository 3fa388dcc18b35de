"""Since when this process may have imported something: a lower bound, for one module at a time.

Imported with ``preheat`` itself, because what is not loaded by now is imported later than now.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

# The kernel stamps files with a clock that is up to a tick (10 ms at most) behind this one.
_TICK_NS = 20_000_000
# What was loaded at some moments, the latest last, and when each was: what is loaded since, and only
# that, was imported later.
_moments = [(frozenset(sys.modules), time.time_ns() - _TICK_NS)]


def _forked() -> None:
    _moments.append((frozenset(sys.modules), time.time_ns() - _TICK_NS))


# A forked process has the modules of the one that it comes from; anything else it imports by itself.
os.register_at_fork(after_in_child=_forked)

# Fields of /proc/PID/stat, counted from 1: parent, flags, and start in clock ticks since boot.
_PARENT, _FLAGS, _START = 4, 9, 22
_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC of the kernel


def imported_after_ns(name: str, module: ModuleType) -> int:
    """A moment before which ``module``, known as ``name``, was not imported; of ``time.time_ns``.

    For what was loaded before preheat: when the interpreter started, forks not counted, because a
    forked process has the modules of the one that it comes from. For anything else: when preheat was
    imported, or when this process was forked if the module was not there yet. Not promised: modules
    that were executed by hand before and got their name later.
    """
    spec = getattr(module, "__spec__", None)
    names = {name, getattr(module, "__name__", name), getattr(spec, "name", name)}
    if module is not sys.modules.get("__main__"):
        for loaded, when in reversed(_moments):
            if loaded.isdisjoint(names):
                return when
    return interpreter_started_ns()


@functools.cache
def interpreter_started_ns() -> int:
    """When the program of this process was started, in nanoseconds of ``time.time_ns``, to 10 ms.

    0 where the system does not say. Of a process that was forked, when its ancestor was started; where
    that one is gone, an earlier moment.
    """
    try:
        fields = _fields("self")
        while int(fields[_FLAGS - 3]) & _FORKED_WITHOUT_EXEC:
            fields = _fields(fields[_PARENT - 3])
        # Counted in ticks and rounded down: the latest moment that fits, or a file that was written
        # just before the process started would count as edited after it.
        ticks = int(fields[_START - 3]) + 1
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
    return time.time_ns() - int(age_s * 1e9)


def _fields(pid: str) -> list[str]:
    # The second field, the program's name, may hold spaces and parentheses.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
