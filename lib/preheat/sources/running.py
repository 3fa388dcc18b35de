"""Whether this process may have imported something else than what lies on disk now."""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from preheat.manifest import Sources

_IMPORTED_NS = time.time_ns()
_START_FIELD = 22  # of /proc/self/stat, counted from 1: start in clock ticks since boot


def edited_since_start(
    sources: Sources,
    *,
    modules: Mapping[str, ModuleType] | None = None,
    started_ns: int | None = None,
) -> tuple[Reason, ...]:
    """Reasons for the recorded modules that are loaded here and whose file changed after the start.

    Such a file may have been edited after it was imported; then disk and package agree with each other
    and not with this process. Errs on the side of a reason: a file edited after the start and imported
    later is named as well. Not promised: noticing edits on a file server whose clock is behind.
    """
    known = sys.modules if modules is None else modules
    started = process_started_ns() if started_ns is None else started_ns
    reasons = []
    for module in sources.modules:
        file = getattr(known.get(module.module), "__file__", None)
        if isinstance(file, str) and _changed_ns(Path(file)) > started:
            reasons.append(
                Reason(
                    kind="module_edited",
                    file=module.path,
                    symbol=module.module,
                    detail="changed after this process started; restart it",
                )
            )
    return tuple(reasons)


@functools.cache
def process_started_ns() -> int:
    """When this process started, in nanoseconds of ``time.time_ns``, to about 10 ms.

    Where the system does not say: when this module was imported.
    """
    try:
        # The second field, the program's name, may hold spaces and parentheses.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # Counted in ticks and rounded down: the latest moment that fits, or a file that was written
        # just before the process started would count as edited after it.
        ticks = int(fields[_START_FIELD - 3]) + 1
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED_NS
    return time.time_ns() - int(age_s * 1e9)


def _changed_ns(path: Path) -> int:
    try:
        found = path.stat()
    except OSError:
        return 0
    return max(found.st_mtime_ns, found.st_ctime_ns)
