"""Large objects are mapped, not copied: processes that load the same package share its pages.

A mapping has what the file has. A page that is changed in place after its digest was checked would be used
unchecked, and one that is gone, after a truncation or an error of the disk, ends the process by SIGBUS. The
store itself never does either: an object is made under another name, is mode 0444, and is only renamed and
unlinked. So an object is mapped where only those could do it who may run code in this process anyhow, and
where a page that was read stays readable; everywhere else it is copied. Shared libraries of kernels are
mapped by the dynamic loader in any case.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

    from preheat.store.files import Files
    from preheat.store.trust import Trust

# Below this, the pages that are saved are not worth the calls.
LEAST_BYTES = 1024 * 1024
_HASHED_BYTES = 8 * 1024 * 1024


def may_map(trust: Trust, status: os.stat_result) -> bool:
    """Whether an opened object may be mapped: it is large, trusted, and on a disk of this machine.

    Only then: over a network a file can vanish under its mapping. Such file systems, and others without
    a block device of their own (FUSE, overlays, tmpfs), have no major device number.
    """
    return (
        status.st_size >= LEAST_BYTES and trust.level == "require" and os.major(status.st_dev) != 0
    )


def map_verified(files: Files, descriptor: int, size: int, digest: str) -> mmap.mmap | None:
    """The mapped bytes of an opened file; None when they do not have this digest.

    Private: what this process writes there is seen by nobody else, and by the file never. Raises
    ``OSError`` and ``ValueError`` for what cannot be mapped; then it is to be read.
    """
    mapped = files.map(descriptor, size)
    hashed = hashlib.sha256()
    # In pieces: hashing all at once would hold the interpreter's other threads up for seconds.
    with memoryview(mapped) as view:
        for start in range(0, size, _HASHED_BYTES):
            hashed.update(view[start : start + _HASHED_BYTES])
    if hashed.hexdigest() == digest:
        return mapped
    mapped.close()
    return None
