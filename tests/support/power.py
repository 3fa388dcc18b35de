"""A disk that loses power: what may be left of calls that were not followed by an fsync.

``Journal`` is a double that works on a real directory and writes down every change. ``Disk`` is a model of
what is known to be durable, and ``Disk.outcomes`` are disks that a loss of power may leave: of the changes
that no fsync covers, none, all, only the first ones, only one, all but one, and some at random reach the
disk; bytes that no fsync covers are lost, cut, zero or there.

Source: POSIX ``fsync`` and ``rename``. A file's name is durable after an fsync of its directory, its bytes
and mode after its own. A rename is atomic: after a crash the file has its old name, its new one, or both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from support.faults import FailingFiles, Operation, next_call, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Bytes = Literal["lost", "cut", "zero", "there"]
BYTES: tuple[Bytes, ...] = ("lost", "cut", "zero", "there")
_RANDOM_CHOICES = 6


@dataclasses.dataclass(frozen=True)
class Change:
    """One entry of a journal. ``number`` is that of the file, ``path`` and ``target`` are names."""

    kind: Literal[
        "mkdir", "create", "write", "chmod", "fsync", "rename", "unlink", "fsync_directory"
    ]
    path: str = ""
    target: str = ""
    number: int = -1
    data: bytes = b""
    mode: int = 0


class Journal(FailingFiles):
    """Writes down each change below ``root``, after it happened."""

    def __init__(self, root: Path) -> None:
        super().__init__(None, None, once=False)
        self.root = root
        self.changes: list[Change] = []
        self._numbers = itertools.count(1)
        self._open: dict[int, int] = {}

    def _name(self, path: Path | str, dir_fd: int | None) -> str:
        place = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        return os.path.relpath(place / path, self.root)

    def create(self, path: Path | str, dir_fd: int | None = None) -> int:
        descriptor = super().create(path, dir_fd)
        number = self._open[descriptor] = next(self._numbers)
        self.changes.append(Change("create", self._name(path, dir_fd), number=number, mode=0o600))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        taken = super().write(descriptor, data)
        self.changes.append(
            Change("write", number=self._open[descriptor], data=bytes(data[:taken]))
        )
        return taken

    def fchmod(self, descriptor: int, mode: int) -> None:
        super().fchmod(descriptor, mode)
        if descriptor in self._open:
            self.changes.append(Change("chmod", number=self._open[descriptor], mode=mode))

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        if descriptor in self._open:
            self.changes.append(Change("fsync", number=self._open[descriptor]))

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._open.pop(descriptor, None)

    def replace(
        self,
        source: Path | str,
        destination: Path | str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        super().replace(source, destination, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        old, new = self._name(source, src_dir_fd), self._name(destination, dst_dir_fd)
        self.changes.append(Change("rename", old, new))

    def unlink(self, path: Path | str, dir_fd: int | None = None) -> None:
        super().unlink(path, dir_fd)
        self.changes.append(Change("unlink", self._name(path, dir_fd)))

    def mkdir(self, path: Path | str, mode: int, dir_fd: int | None = None) -> None:
        super().mkdir(path, mode, dir_fd)
        self.changes.append(Change("mkdir", self._name(path, dir_fd)))

    def fsync_directory(self, path: Path | str, dir_fd: int | None = None) -> None:
        super().fsync_directory(path, dir_fd)
        self.changes.append(Change("fsync_directory", self._name(path, dir_fd)))


@dataclasses.dataclass
class _File:
    """``durable``: what an fsync covered."""

    now: bytes = b""
    mode: int = 0o600
    durable: bytes = b""
    durable_mode: int = 0o600

    def after(self, lost: Bytes) -> tuple[bytes, int]:
        if self.now == self.durable:
            return self.now, self.mode if lost == "there" else self.durable_mode
        rest = self.now[len(self.durable) :]
        kept = {"lost": b"", "cut": rest[: len(rest) // 2], "zero": bytes(len(rest)), "there": rest}
        return self.durable + kept[lost], self.mode if lost != "lost" else self.durable_mode


Tree = tuple[tuple[str, bytes | None, int], ...]


class Disk:
    """The directory ``root`` as it is now, all of it durable, and then what a journal says."""

    def __init__(self, root: Path) -> None:
        self._files: dict[int, _File] = {}
        self._directories = {"."}
        self._names: dict[str, int] = {}
        for number, path in enumerate(sorted(root.rglob("*")), start=1):
            name = os.path.relpath(path, root)
            if path.is_dir():
                self._directories.add(name)
                continue
            data, mode = path.read_bytes(), path.stat().st_mode & 0o7777
            self._files[-number] = _File(data, mode, data, mode)
            self._names[name] = -number

    def outcomes(self, changes: list[Change]) -> Iterator[Tree]:
        """What may be there when the power fails after these changes."""
        files = self._contents(changes)
        pending = [at for at, one in enumerate(changes) if self._is_pending(changes, at, one)]
        for kept in choices(pending):
            for lost in BYTES:
                yield self._tree(changes, files, set(pending) - kept, lost)

    def worst(self, changes: list[Change]) -> Tree:
        """What is there when nothing reached the disk but what an fsync covers."""
        pending = {at for at, one in enumerate(changes) if self._is_pending(changes, at, one)}
        return self._tree(changes, self._contents(changes), pending, "lost")

    def _contents(self, changes: list[Change]) -> dict[int, _File]:
        files = {number: dataclasses.replace(file) for number, file in self._files.items()}
        for one in changes:
            if one.kind == "create":
                files[one.number] = _File()
            elif one.kind == "write":
                files[one.number].now += one.data
            elif one.kind == "chmod":
                files[one.number].mode = one.mode
            elif one.kind == "fsync":
                file = files[one.number]
                file.durable, file.durable_mode = file.now, file.mode
        return files

    @staticmethod
    def _is_pending(changes: list[Change], at: int, one: Change) -> bool:
        """Whether no fsync of the directory covers this change of a name."""
        if one.kind not in ("create", "mkdir", "rename", "unlink"):
            return False
        return not _is_covered(changes, at, one.target or one.path)

    def _tree(
        self, changes: list[Change], files: dict[int, _File], dropped: set[int], lost: Bytes
    ) -> Tree:
        names, directories = dict(self._names), set(self._directories)
        now = dict(self._names)  # as the processes saw it
        for at, one in enumerate(changes):
            if one.kind == "create":
                now[one.path] = one.number
                if at not in dropped:
                    names[one.path] = one.number
            elif one.kind == "mkdir" and at not in dropped:
                directories.add(one.path)
            elif one.kind == "rename":
                number = now.pop(one.path)
                now[one.target] = number
                if at not in dropped:
                    names[one.target] = number
                    # The old name may go later than the new one comes: then there are both.
                    both = lost == "cut" and not _is_covered(changes, at, one.path)
                    if names.get(one.path) == number and not both:
                        del names[one.path]
            elif one.kind == "unlink":
                number = now.pop(one.path, 0)
                if at not in dropped and names.get(one.path) == number:
                    del names[one.path]
        return _standing(names, directories, files, lost)


def _is_covered(changes: list[Change], at: int, name: str) -> bool:
    """Whether an fsync of its directory followed on a change of this name."""
    parent = str(Path(name).parent)
    return any(
        later.kind == "fsync_directory" and later.path == parent for later in changes[at + 1 :]
    )


def _standing(
    names: dict[str, int], directories: set[str], files: dict[int, _File], lost: Bytes
) -> Tree:
    """What can be reached: below a directory whose name was lost, nothing."""

    def is_there(name: str) -> bool:
        parents = [str(parent) for parent in Path(name).parents if str(parent) != "."]
        return all(parent in directories for parent in parents)

    found: list[tuple[str, bytes | None, int]] = [
        (name, None, 0o755) for name in sorted(directories) if name != "." and is_there(name)
    ]
    for name, number in sorted(names.items()):
        if is_there(name):
            data, mode = files[number].after(lost)
            found.append((name, data, mode))
    return tuple(found)


def choices(pending: list[int]) -> Iterator[set[int]]:
    """Which of the changes that no fsync covers reached the disk."""
    yield set()
    yield set(pending)
    for count in range(1, len(pending)):
        yield set(pending[:count])
    for one in pending:
        yield {one}
        yield set(pending) - {one}
    chance = random.Random(len(pending))  # noqa: S311 - repeatable, not secret
    for _ in range(_RANDOM_CHOICES):
        yield {one for one in pending if chance.random() < 0.5}


@contextlib.contextmanager
def _laid_down(tree: Tree, root: Path) -> Iterator[Path]:
    """A directory of what a loss of power left."""
    root.mkdir(parents=True)
    for name, data, mode in tree:
        path = root / name
        if data is None:
            path.mkdir(mode=0o700 if name == "state" else 0o755)
        else:
            path.write_bytes(data)
            path.chmod(mode)
    yield root
    shutil.rmtree(root.parent)


def lose_power_at_every_call(
    operation: Operation, tmp_path: Path, *, founded: bool = True
) -> tuple[int, int]:
    """Check every disk that may be left, each once. Says how many changes and how many disks there were.

    ``founded``: the store was there before; else making it is what is interrupted.
    """
    root = tmp_path / "live" / "store"
    if founded:
        operation.make(root)
    else:
        root.mkdir(parents=True)
    disk, journal = Disk(root), Journal(root)
    store = opened(root, journal)
    operation.act(store, journal)
    changes = journal.changes
    seen: set[Tree] = set()
    for count in range(len(changes) + 1):
        done = count == len(changes)
        for tree in set(disk.outcomes(changes[:count])):
            if tree in seen and not done:
                continue
            seen.add(tree)
            with _laid_down(tree, tmp_path / "left" / "store") as left:
                if done:
                    operation.finished(left)
                operation.check_all(left)
    return len(changes), len(seen)


def fail_then_lose_power(
    operation: Operation,
    tmp_path: Path,
    instead: Callable[[str], None],
    expected: type[BaseException],
    after: Callable[[Path], object],
) -> int:
    """One process dies at every call, the next one does the same work whole, then the power fails and takes
    all that no fsync covers.

    ``after`` checks that what the second one returned from is there.
    """
    number = 0
    while True:
        number = next_call(number)
        place = tmp_path / str(number)
        root = place / "store"
        root.mkdir(parents=True)
        disk, journal = Disk(root), Journal(root)
        journal.first, journal.instead = number, instead
        reached = False
        try:
            operation.act(opened(root, journal), journal)
        except expected:
            reached = True
        journal.first = None
        operation.act(opened(root, journal), journal)
        with _laid_down(disk.worst(journal.changes), place / "left" / "store") as left:
            after(left)
        shutil.rmtree(place)
        if not reached:
            return number - 1
