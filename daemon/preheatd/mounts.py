"""Whether the kernel tells of changes below a path, from the type of its file system."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

# Changes that other hosts make are not told by inotify on these.
REMOTE_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "lustre", "glusterfs"}
)


def needs_polling(path: str) -> bool:
    """Whether changes below ``path`` are seen only by looking. False when that cannot be told."""
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return is_remote(file_system_type(table, os.path.realpath(path)))


def is_remote(kind: str) -> bool:
    """Whether a file system of this type holds files that others change behind the kernel's back."""
    return kind in REMOTE_TYPES or kind.startswith("fuse.")


@functools.lru_cache(maxsize=256)
def file_system_type(mountinfo: str, path: str) -> str:
    """The type of the file system that ``path`` (resolved) is on; empty when it is on none. Pure."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator or len(left.split()) < 5:
            continue
        mount = _unescape(left.split()[4])
        below = path == mount or path.startswith(mount.rstrip("/") + "/")
        # The same place mounted twice: the later line is on top.
        if below and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
