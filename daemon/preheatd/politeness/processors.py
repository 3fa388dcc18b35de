"""How many processors this process may use, and how many compile threads a build gets."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
# More than torch takes by itself do not help.
MAX_COMPILE_THREADS = 32

# Where control groups of version 2 are mounted, alone or beside version 1, and the processor
# controller of version 1.
_MOUNTS_2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_MOUNTS_1 = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")


@dataclasses.dataclass(frozen=True)
class Processors:
    """What was read: the processors of the affinity mask, and each quota, in processors."""

    affinity: int
    quotas: tuple[float, ...] = ()

    @property
    def usable(self) -> float:
        """How many processors all threads together may keep busy."""
        return min((float(self.affinity), *self.quotas))


def compile_threads(processors: Processors, builds: int) -> int:
    """How many compile threads each of so many builds at once may have, at least one."""
    return max(1, min(MAX_COMPILE_THREADS, int(processors.usable / max(1, builds))))


def with_compile_threads(variables: Mapping[str, str], threads: int) -> dict[str, str]:
    """The variables of a build process with this many threads, unless they say already how many.

    The variable changes no generated code: it is not part of an environment, and a worker without it
    loads the same package.
    """
    return {COMPILE_THREADS: str(threads), **variables}


def read_processors(root: Path = Path("/"), affinity: int | None = None) -> Processors:
    """Read affinity and quotas of this process. ``root``: where ``proc`` and ``sys`` are.

    What cannot be read limits nothing. Not covered: weights, which share and do not limit.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0))
    return Processors(affinity, tuple(_quotas(root)))


def _quotas(root: Path) -> Iterator[float]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _quotas_below(root, _MOUNTS_2, path, _quota_2)
        elif "cpu" in controllers.split(","):
            yield from _quotas_below(root, _MOUNTS_1, path, _quota_1)


def _quotas_below(
    root: Path, mounts: tuple[str, ...], path: str, quota: Callable[[Path], float | None]
) -> Iterator[float]:
    """The quotas of a group and of all above it. In a container the path may not exist: its own group
    is then the root of the mount."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in mounts:
        for depth in range(len(parts) + 1):
            found = quota(root.joinpath(mount, *parts[:depth]))
            if found is not None:
                yield found


def _quota_2(group: Path) -> float | None:
    return _ratio(*_read(group / "cpu.max").split())


def _quota_1(group: Path) -> float | None:
    return _ratio(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _ratio(quota: str = "", period: str = "", *_: str) -> float | None:
    try:
        found = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None  # "max", or nothing
    return found if found > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
