"""The priority of build and proof processes: processor, disk, and who ends when memory runs out.

It is set from the parent when the process has just been started: code between fork and exec is not
safe in a process with threads. What is started later inherits it; not promised for what the process
itself started in its first milliseconds, which for an interpreter is nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheatd.politeness.settings import Politeness

# The kernel ends what has the highest score, and the score of a daemon is below this one.
OOM_SCORE_ADJUSTMENT = 800


def give_way(group: int, politeness: Politeness) -> tuple[str, ...]:
    """Put a process group, by the number of its leader, behind everything else of the machine.

    Needs no privilege: nothing is ever raised, and what the daemon itself has is the least. Says what
    was not possible. A process that has ended meanwhile is no trouble.
    """
    steps: dict[str, Callable[[], None]] = {
        "`nice`": lambda: _nice(group, politeness.nice),
        "`idle_io`": lambda: _idle_io(group) if politeness.idle_io else None,
        "the order in which the kernel ends processes without memory": lambda: _first_to_end(group),
    }
    troubles = []
    for what, step in steps.items():
        try:
            step()
        except (ProcessLookupError, FileNotFoundError, psutil.NoSuchProcess):
            break
        except (OSError, psutil.Error) as error:
            troubles.append(f"{what} cannot be set for builds: {_why(error)}")
    return tuple(troubles)


def _why(error: Exception) -> str:
    """Without the number of the process: it is the same trouble for each."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _nice(group: int, nice: int) -> None:
    if nice > os.getpriority(os.PRIO_PROCESS, group):
        os.setpriority(os.PRIO_PGRP, group, nice)


def _idle_io(group: int) -> None:
    psutil.Process(group).ionice(psutil.IOPRIO_CLASS_IDLE)


def _first_to_end(group: int) -> None:
    path = Path(f"/proc/{group}/oom_score_adj")
    if int(path.read_text(encoding="ascii")) < OOM_SCORE_ADJUSTMENT:
        path.write_text(str(OOM_SCORE_ADJUSTMENT), encoding="ascii")
