"""One build at a time: a lock for each target and environment.

The lock only saves work. Two builds of the same thing are wasteful, never wrong, because objects are
named by content and a ref moves whole. So it need not hold across hosts, and on NFS it may not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import BusyError, StoreError
from preheat.limits import decode_json
from preheat.store.failures import write_failure
from preheat.store.files import Files
from preheat.store.layout import Layout
from preheat.store.temporary import process_space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.manifest import Digest


MAX_HOLDER_BYTES = 4096


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock, as far as they wrote it down. ``space`` says whose number ``pid`` is."""

    host: str
    pid: int
    space: str = ""


@contextlib.contextmanager
def build_lock(
    root: str | os.PathLike[str],
    target: str,
    environment: Digest,
    *,
    files: Files | None = None,
) -> Iterator[None]:
    """Hold the build lock of a target in an environment, or raise ``BusyError`` that names the holder.

    Never waits. ``root`` is that of a store that exists. The lock ends with the block, or with the
    process, however that ends; its file stays. Not reentrant. May be left in another thread than it
    was entered in. ``files``: the seam for everything but the lock itself, which is a library's. Needs
    the library filelock (in ``preheat[daemon]``); raises ``StoreError`` where the lock's file cannot be
    written.
    """
    import filelock  # here, because workers import this package and never lock

    files = Files() if files is None else files
    layout = Layout(Path(root).absolute())
    path = layout.lock(target, environment)
    note = layout.lock_holder(target, environment)
    # Not the lock's own content: some versions of filelock truncate the file when they try it.
    lock = filelock.FileLock(path, timeout=0, thread_local=False)
    if not _is_directory(files, layout.locks):  # filelock would make it, and with it half a store
        raise StoreError(f"There is no store at {layout.root}: no lock {path.name}.")
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BusyError(f"{target!r} is being built by {_read_holder(files, note)}.") from error
    except OSError as error:
        raise write_failure(error, path) from error
    try:
        with contextlib.suppress(OSError):  # only for the message of others
            _write_holder(files, note)
        yield
    finally:
        with contextlib.suppress(OSError):
            files.unlink(note)
        lock.release()


def decode_holder(data: bytes) -> Holder | None:
    """The content of a holder's note; None when it is damaged."""
    try:
        return decode_json(data, Holder, MAX_HOLDER_BYTES)
    except msgspec.MsgspecError:
        return None


def _is_directory(files: Files, path: Path) -> bool:
    try:
        return stat.S_ISDIR(files.lstat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return False
        raise write_failure(error, path) from error


def _write_holder(files: Files, note: Path) -> None:
    holder = Holder(host=socket.gethostname(), pid=os.getpid(), space=process_space())
    unfinished = note.with_name(f"{note.name}.new")  # only the lock's holder gets here
    with contextlib.suppress(FileNotFoundError):
        files.unlink(unfinished)  # of one that died here
    descriptor = files.create(unfinished)
    try:
        data = memoryview(msgspec.json.encode(holder))
        while data:
            data = data[files.write(descriptor, data) :]
        files.fchmod(descriptor, 0o644)  # whoever is told "busy" may be another user
    finally:
        files.close(descriptor)
    files.replace(unfinished, note)


def _read_holder(files: Files, note: Path) -> str:
    try:
        descriptor = files.open_for_reading(note)
        try:
            holder = decode_holder(files.read(descriptor, MAX_HOLDER_BYTES))
        finally:
            files.close(descriptor)
    except OSError:
        holder = None
    if holder is None:
        return "another process"
    if holder.space == process_space() and not files.process_exists(holder.pid):
        return "another process"  # the note is of one that was killed; who holds it now has not written
    return f"process {holder.pid} on {holder.host}"
