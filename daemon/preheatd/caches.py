"""Compiler caches that builds of one environment share, and what to do when they are damaged.

Inductor lets the C++ compiler write straight to the name that a later build looks for. A build that is
killed in that moment leaves a file that no later build can load, and that none replaces.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import signal
from typing import TYPE_CHECKING

from preheatd.leftovers import DAMAGED_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

# Where a damaged file can show itself; before these phases nothing has been read from a cache.
_OWN_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
SUSPECT_PHASES = frozenset({"trace", "kernels", "package", "proof"})


@dataclasses.dataclass(frozen=True)
class CompilerCaches:
    """The directories below ``base``: Inductor's, Triton's, and one for temporary files.

    The precompiled C++ header follows the temporary directory, so that is kept as well.
    """

    base: Path

    @property
    def inductor(self) -> Path:
        """For TORCHINDUCTOR_CACHE_DIR."""
        return self.base / "inductor"

    @property
    def triton(self) -> Path:
        """For TRITON_CACHE_DIR."""
        return self.base / "triton"

    @property
    def temporary(self) -> Path:
        """For TMPDIR."""
        return self.base / "tmp"

    def variables(self) -> dict[str, str]:
        """What a process's environment says about them."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.inductor),
            "TRITON_CACHE_DIR": str(self.triton),
            "TMPDIR": str(self.temporary),
        }

    def prepare(self) -> CompilerCaches:
        """Make the directories, private to their owner."""
        for path in (self.inductor, self.triton, self.temporary):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def are_empty(self) -> bool:
        """Whether no build has left anything here."""
        return not any(any(path.iterdir()) for path in (self.inductor, self.triton))

    def replace_with(self, other: CompilerCaches) -> None:
        """Take ``other``'s directories; what was here is removed.

        A build that uses these at the moment may fail; it is built again by the same rule. When two
        replace them at the same time, the caches of one of them stay.
        """
        old = self.base.with_name(f"{self.base.name}.{secrets.token_hex(4)}{DAMAGED_SUFFIX}")
        try:
            self.base.rename(old)
        except FileNotFoundError:
            return  # somebody else does it right now
        if (
            not self.base.exists()
        ):  # else a build has begun meanwhile: into it, nothing is to be moved
            shutil.move(other.base, self.base)
        shutil.rmtree(old, ignore_errors=True)


def may_be_to_blame(phase: str, ended_by: int | None, *, refused: bool) -> bool:
    """Whether a failure could come from a damaged cache, and so deserves a try with empty ones.

    ``ended_by`` is the signal that ended the process. Nobody's cache sends SIGKILL or SIGTERM.
    """
    return not refused and phase in SUSPECT_PHASES and ended_by in (None, *_OWN_FAULTS)
