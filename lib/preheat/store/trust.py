"""Could somebody else have changed the store? In the style of OpenSSH's StrictModes.

A package is code: whoever can write the store runs code in every worker. So each component of a path
must belong to the current user, to root or to an owner that is trusted by name, and must not be
writable by its group or by everybody, unless it is a directory with the sticky bit (``/tmp``), where
others can add names but not replace ours. Access lists count, because they show in the group's bits.

What was judged is what is used: each component is opened without following anything, judged by its open
descriptor, and the next one is looked up in that descriptor. A component that is exchanged meanwhile is
either judged itself or not passed.

Not promised: anything against a trusted owner or root, nor against whoever controls the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from preheat.errors import ConfigurationError, UntrustedStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from preheat.store.files import Files

TrustLevel = Literal["require", "warn", "off"]
TRUSTED_UIDS_VARIABLE = "PREHEAT_TRUSTED_UIDS"

_MAX_LINKS = 40  # what Linux allows in one path


class Objection(NamedTuple):
    """Why a path is not trusted: a sentence, and what to do about it."""

    message: str
    remedy: str


def objection(path: Path | str, status: os.stat_result, owners: frozenset[int]) -> Objection | None:
    """What there is against one component or file. Pure."""
    if status.st_uid not in owners:
        others = ", ".join(str(uid) for uid in sorted(owners))
        return Objection(
            f"{path} belongs to uid {status.st_uid}; trusted are {others}.",
            f"If that account may run code here, set {TRUSTED_UIDS_VARIABLE}={status.st_uid}; "
            "otherwise change the owner or choose another store.",
        )
    if stat.S_ISLNK(status.st_mode):
        return None  # a link's mode says nothing; who may replace it is said by its directory
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & 0o022 and not sticky:
        who = "everybody" if status.st_mode & 0o002 else "its group"
        return Objection(
            f"{path} is writable by {who} (mode {stat.S_IMODE(status.st_mode):04o}).",
            f"Run `chmod go-w {path}`, or choose another store.",
        )
    return None


def trusted_uids(environ: Mapping[str, str]) -> frozenset[int]:
    """The uids in PREHEAT_TRUSTED_UIDS, a comma-separated list. Raises ``ConfigurationError``."""
    text = environ.get(TRUSTED_UIDS_VARIABLE, "")
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigurationError(
            f"{TRUSTED_UIDS_VARIABLE}={text!r} is not a comma-separated list of user ids.",
            remedy=f"Write numbers, for example {TRUSTED_UIDS_VARIABLE}=998.",
        )
    return frozenset(int(word) for word in words)


class Trust(msgspec.Struct, frozen=True):
    """How strict to be. ``require`` refuses, ``warn`` logs (logger ``preheat.store``), ``off`` is silent.

    At every level objects and refs must be regular files, reached without a symbolic link in the last
    component, and objects must have the digest that names them.
    """

    level: TrustLevel
    owners: frozenset[int]

    @classmethod
    def of(cls, level: TrustLevel, owners: frozenset[int]) -> Trust:
        """``owners``, the current user, root, and those of PREHEAT_TRUSTED_UIDS."""
        if level not in ("require", "warn", "off"):
            raise ConfigurationError(f"trust must be require, warn or off, not {level!r}.")
        return cls(level, frozenset({0, os.geteuid()}) | owners | trusted_uids(os.environ))

    def judge(self, path: Path | str, status: os.stat_result) -> None:
        """Raises ``UntrustedStoreError`` that names ``path``, or logs, or passes."""
        if self.level == "off":
            return
        found = objection(path, status, self.owners)
        if found is None:
            return
        if self.level == "require":
            raise UntrustedStoreError(found.message, remedy=found.remedy)
        import logging

        logging.getLogger("preheat.store").warning("%s %s", found.message, found.remedy)

    @contextlib.contextmanager
    def directory(self, files: Files, directory: Path) -> Iterator[int]:
        """A descriptor of a directory, to look names up in, with every component from ``/`` down judged.

        Raises ``UntrustedStoreError``; ``OSError`` when a component is missing or cannot be seen.
        """
        descriptor = walk(files, directory, self.judge)
        try:
            yield descriptor
        finally:
            files.close(descriptor)

    def judge_file(self, path: Path, status: os.stat_result) -> None:
        """Judge an opened file. Anything but a regular file is refused at every level."""
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedStoreError(
                f"{path} is not a regular file.", remedy="Remove it; preheat did not put it there."
            )
        self.judge(path, status)


def walk(files: Files, path: Path, visit: Callable[[str, os.stat_result], None]) -> int:
    """Visit each component that the kernel passes on the way to ``path``, from ``/`` down.

    Returns a descriptor of the directory where ``path`` leads (``Files.open_component``); the caller closes
    it. Symbolic links are components too, and so is all that they lead through. ``path`` must be absolute.
    Raises ``OSError``, ENOTDIR for what is no directory, and ``UntrustedStoreError`` for too many links.
    """
    steps = _Steps(files, visit)
    pending = list(reversed(path.parts[1:]))
    links = 0
    try:
        steps.enter("/")
        while pending:
            name = pending.pop()
            if name == "..":
                steps.leave()
                continue
            target = steps.enter(name)
            if target is None:
                continue
            links += 1
            if links > _MAX_LINKS:
                raise UntrustedStoreError(f"{path} leads through more than {_MAX_LINKS} links.")
            if target.startswith("/"):
                steps.leave_all()
            pending.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
        return steps.take()
    finally:
        steps.close()


class _Steps:
    """The directories from ``/`` to where a walk is, all open: ``..`` goes back to what was judged."""

    def __init__(self, files: Files, visit: Callable[[str, os.stat_result], None]) -> None:
        self._files = files
        self._visit = visit
        self._names: list[str] = []
        self._descriptors: list[int] = []

    def enter(self, name: str) -> str | None:
        """One step down. What a symbolic link says instead, and then nothing is entered."""
        inside = self._descriptors[-1] if self._descriptors else None
        descriptor, status = self._files.open_component(name, inside)
        try:
            self._visit("/".join((*self._names, name)).replace("//", "/", 1), status)
            if stat.S_ISLNK(status.st_mode):
                target = self._files.read_link(descriptor)
                self._files.close(descriptor)
                return target
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._names.append(name)
        self._descriptors.append(descriptor)
        return None

    def leave(self) -> None:
        """One step up; from ``/`` there is none."""
        if len(self._descriptors) > 1:
            self._names.pop()
            self._files.close(self._descriptors.pop())

    def leave_all(self) -> None:
        """Back to ``/``."""
        while len(self._descriptors) > 1:
            self.leave()

    def take(self) -> int:
        """The descriptor of the last step, which is the caller's from now on."""
        return self._descriptors.pop()

    def close(self) -> None:
        while self._descriptors:
            self._files.close(self._descriptors.pop())
