"""What an ``OSError`` means for somebody who uses a store."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError, StoreError, UntrustedStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
# ESTALE: on NFS a file that another host replaced or removed while it was open here.
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def write_failure(error: OSError, path: Path) -> StoreError:
    """The error for a failed change at ``path``: names the path, the cause and a remedy."""
    if error.errno in _FULL:
        return StoreError(
            f"{path} cannot be written: {error.strerror}.",
            remedy="Free some space, or choose another store with PREHEAT_STORE.",
        )
    if error.errno == errno.EROFS:
        return StoreError(
            f"{path} cannot be written: it is on a read-only file system.",
            remedy="Loading from there works; to build, choose another store with PREHEAT_STORE.",
        )
    if error.errno in _DENIED:
        return StoreError(
            f"{path} cannot be written by uid {os.geteuid()}: {error.strerror}.",
            remedy="Make that user the owner, or choose another store with PREHEAT_STORE.",
        )
    return StoreError(f"{path} cannot be written: {error.strerror or error}.")


def read_failure(error: OSError, path: Path) -> StoreError:
    """The error for a failed read of ``path``, when it is not that the file is gone."""
    if error.errno == errno.ELOOP:
        return UntrustedStoreError(
            f"{path} is a symbolic link; a store has none.", remedy="Remove the link."
        )
    if error.errno == errno.EIO:
        return CorruptedError(f"{path} cannot be read: {error.strerror}.")
    return StoreError(f"{path} cannot be read by uid {os.geteuid()}: {error.strerror or error}.")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` inside into the ``StoreError`` of a failed change at ``path``."""
    try:
        yield
    except OSError as error:
        raise write_failure(error, path) from error
