"""Names of temporary files, and which of them are left over from processes that are gone."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.store.layout import encode_name

if TYPE_CHECKING:
    from collections.abc import Callable

# Nobody takes a day to write one file; beyond it even a process that cannot be seen is given up.
GRACE_SECONDS = 24 * 60 * 60


@functools.cache
def process_space() -> str:
    """Says which process table a pid belongs to: host name, then a digest of boot and pid namespace.

    The host name alone would not do: containers share names and have pids of their own.
    """
    host = socket.gethostname()
    facts = [host]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(source)
        with contextlib.suppress(OSError):
            facts.append(str(path.readlink()) if path.is_symlink() else path.read_text())
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return f"{encode_name(host)}.{digest[:12]}"


def temporary_name() -> str:
    """A name that no other process on any host makes: process space, pid, 64 random bits."""
    return f"{process_space()}.{os.getpid()}.{secrets.token_hex(8)}"


def is_leftover(
    name: str, age_seconds: float, *, space: str, process_exists: Callable[[int], bool]
) -> bool:
    """Whether a temporary file of this name and age has no writer any more.

    At once when its process was of this process space and is gone; else after ``GRACE_SECONDS``.
    """
    if age_seconds > GRACE_SECONDS:
        return True
    owner, _, _ = name.rpartition(".")
    owner_space, _, pid = owner.rpartition(".")
    if owner_space != space or not (pid.isascii() and pid.isdigit()):
        return False
    return not process_exists(int(pid))
