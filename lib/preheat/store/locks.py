"""One build at a time: a lock for each target and environment.

The lock only saves work. Two builds of the same thing are wasteful, never wrong, because objects are
named by content and a ref moves whole. So it need not hold across hosts, and on NFS it may not.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import BusyError, StoreError
from preheat.store.failures import write_failure
from preheat.store.files import Files
from preheat.store.layout import Layout
from preheat.store.temporary import process_space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.manifest import Digest


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock, as far as they wrote it down. ``space`` says whose number ``pid`` is."""

    host: str
    pid: int
    space: str = ""


@contextlib.contextmanager
def build_lock(root: str | os.PathLike[str], target: str, environment: Digest) -> Iterator[None]:
    """Hold the build lock of a target in an environment, or raise ``BusyError`` that names the holder.

    Never waits. ``root`` is that of a store that exists. The lock ends with the block, or with the
    process, however that ends; its file stays. Not reentrant. May be left in another thread than it
    was entered in. Needs the library filelock (in ``preheat[daemon]``); raises ``StoreError`` where
    the lock's file cannot be written.
    """
    import filelock  # here, because workers import this package and never lock

    layout = Layout(Path(root).absolute())
    path = layout.lock(target, environment)
    note = layout.lock_holder(target, environment)
    # Not the lock's own content: some versions of filelock truncate the file when they try it.
    lock = filelock.FileLock(path, timeout=0, thread_local=False)
    if not layout.locks.is_dir():  # filelock would make it, and with it half a store
        raise StoreError(f"There is no store at {layout.root}: no lock {path.name}.")
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BusyError(f"{target!r} is being built by {_read_holder(note)}.") from error
    except OSError as error:
        raise write_failure(error, path) from error
    try:
        with contextlib.suppress(OSError):  # only for the message of others
            _write_holder(note)
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink()
        lock.release()


def _write_holder(note: Path) -> None:
    holder = Holder(host=socket.gethostname(), pid=os.getpid(), space=process_space())
    unfinished = note.with_name(f"{note.name}.new")  # only the lock's holder gets here
    unfinished.write_bytes(msgspec.json.encode(holder))
    unfinished.replace(note)


def _read_holder(note: Path) -> str:
    try:
        holder = msgspec.json.decode(note.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return "another process"
    if holder.space == process_space() and not Files().process_exists(holder.pid):
        return "another process"  # the note is of one that was killed; who holds it now has not written
    return f"process {holder.pid} on {holder.host}"
