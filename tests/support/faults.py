"""Doubles of the seam between store and operating system, and the harness that drives them.

An ``Operation`` is something that changes or reads a store. ``fail_at_every_call`` lets it go wrong at its
first call of the file system, its second, and so on until it gets through; ``lose_power_at_every_call``
shows its check every disk that a loss of power at any of these moments may leave behind.

One more operation is one more ``Operation`` in the list of a test.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shutil
from typing import TYPE_CHECKING, Any

from preheat.errors import PreheatError
from preheat.manifest import sha256
from preheat.store import DiskStore
from preheat.store.files import Files
from support import figures
from support.bundles import proven
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_EACH, _STEP = 24, 11
OLD, NEW = b"old" * 1000, b"new" * 1000
# Descriptors of a dying process are closed by the kernel; here they would leak.
NOT_COUNTED = ("process_exists", "close")
CALLS = tuple(name for name in vars(Files) if not name.startswith("_") and name not in NOT_COUNTED)


class Killed(BaseException):
    """Stands for the end of the process: no handler may look at it."""


class QuickFiles(Files):
    """The real calls without the waiting: what is told to reach the disk is believed to have."""

    def fsync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def fsync_directory(self, path: Path | str, dir_fd: int | None = None) -> None:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def process_exists(self, pid: int) -> bool:
        return False  # so that the next writer, which is this process, finds the files left over


class FailingFiles(QuickFiles):
    """Does something instead of call number ``first``, or of all from there on; None: just counts."""

    def __init__(
        self, first: int | None = None, instead: Callable[[str], None] | None = None, *, once: bool
    ) -> None:
        self.count = 0
        self.first = first
        self.instead = instead
        self.once = once

    def about_to(self, name: str) -> None:
        self.count += 1
        first = self.first
        if first is None or self.instead is None:
            return
        if self.count == first or (self.count > first and not self.once):
            self.instead(name)


def _counted(name: str) -> Callable[..., Any]:
    real = getattr(QuickFiles, name)

    @functools.wraps(real)
    def call(self: FailingFiles, *arguments: Any, **named: Any) -> Any:
        self.about_to(name)
        return real(self, *arguments, **named)

    return call


for _name in CALLS:
    setattr(FailingFiles, _name, _counted(_name))


def raise_error(number: int) -> Callable[[str], None]:
    """Instead of a call: the operating system's error of this number."""

    def instead(name: str) -> None:
        raise OSError(number, f"{os.strerror(number)} (in {name})")

    return instead


def die(name: str) -> None:
    """Instead of a call: the end of the process."""
    raise Killed(name)


FULL, BROKEN = raise_error(errno.ENOSPC), raise_error(errno.EIO)


def opened(root: Path, files: Files | None = None) -> DiskStore:
    """The store for writing, through a double."""
    return DiskStore(root, create=True, files=QuickFiles() if files is None else files)


def publish_old(store: DiskStore) -> None:
    """What every operation finds: the target ``model`` with the package ``OLD``."""
    store.put_object(OLD)
    store.publish(manifest_of(OLD))


def check_readers(root: Path, *, may_be_missing: bool = False) -> None:
    """Each name leads to a package that is there as a whole, and it is the old one or the new one."""
    store = DiskStore(root, files=QuickFiles())
    package = store.read_package("model", ENVIRONMENT)
    if package is None:
        assert may_be_missing
    else:
        assert package[1] in (manifest_of(OLD), manifest_of(NEW), proven(NEW))
    for ref in store.refs():  # nothing that is referenced is missing
        for needed in store.read_manifest(ref.manifest).objects():
            store.open_object(needed).close()
    for digest in store.object_digests():  # whatever has an object's name is that object
        assert sha256(store.layout.object(digest).read_bytes()) == digest


def check_next_writer(root: Path) -> None:
    """Temporary files are swept, and who comes next builds, publishes and reads."""
    store = opened(root)
    store.sweep_temporary()
    assert list(store.layout.temporary.iterdir()) == []
    before = store.read_package("model", ENVIRONMENT)
    store.put_object(NEW)
    ref = store.publish(manifest_of(NEW))
    assert ref.generation > (before[0].generation if before else 0)
    after = store.read_package("model", ENVIRONMENT)
    assert after is not None
    assert after[1] == manifest_of(NEW)


@dataclasses.dataclass(frozen=True)
class Operation:
    """Something that works on a store.

    ``act`` is what is interrupted; it gets a store that works through ``files``, and those, for what takes
    them itself. ``prepare`` comes before, undisturbed, in a store that has the old package. ``finished``
    checks what ``act`` promised once it returned. ``may_remove``: it takes packages away.
    """

    name: str
    act: Callable[[DiskStore, Files], object]
    prepare: Callable[[DiskStore], object] = lambda store: None
    finished: Callable[[Path], object] = lambda root: None
    may_remove: bool = False
    check: Callable[[Path], object] = lambda root: None

    def __str__(self) -> str:
        return self.name

    def make(self, root: Path) -> None:
        """The store before ``act``."""
        store = opened(root)
        publish_old(store)
        self.prepare(store)

    def check_all(self, root: Path) -> None:
        """All that has to hold after it went wrong."""
        check_readers(root, may_be_missing=self.may_remove)
        self.check(root)
        check_next_writer(root)


def next_call(number: int) -> int:
    """The call that goes wrong next: each of them in `make test-fault`, not each of hundreds in CI."""
    return number + (1 if figures.FULL or number < _EACH else _STEP)


def fail_at_every_call(
    operation: Operation,
    tmp_path: Path,
    instead: Callable[[str], None],
    expected: type[BaseException] | tuple[type[BaseException], ...] = PreheatError,
    *,
    once: bool,
) -> int:
    """Let it go wrong at its first call, its second, ... until it gets through. Says how many it has."""
    number = points = 0
    operation.make(tmp_path / "before" / "store")
    while True:
        number = next_call(number)
        points += 1
        root = tmp_path / str(number) / "store"
        shutil.copytree(tmp_path / "before", root.parent)
        files = FailingFiles(None, instead, once=once)
        store = opened(root, files)
        files.count, files.first = 0, number
        returned = False
        try:
            operation.act(store, files)
            returned = True
        except expected:
            pass
        if returned:
            operation.finished(root)
        operation.check_all(root)
        shutil.rmtree(root.parent)
        if files.count < number:
            figures.note("a fault at every call", fault_points=points)
            return number - 1
