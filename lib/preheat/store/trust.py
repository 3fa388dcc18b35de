"""Could somebody else have changed the store? In the style of OpenSSH's StrictModes.

A package is code: whoever can write the store runs code in every worker. So each component of a path
must belong to the current user, to root or to an owner that is trusted by name, and must not be
writable by its group or by everybody, unless it is a directory with the sticky bit (``/tmp``), where
others can add names but not replace ours. Access lists count, because they show in the group's bits.

Not promised: anything against a trusted owner or root, nor against whoever controls the disk.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from preheat.errors import ConfigurationError, UntrustedStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.store.files import Files

TrustLevel = Literal["require", "warn", "off"]
TRUSTED_UIDS_VARIABLE = "PREHEAT_TRUSTED_UIDS"

_MAX_LINKS = 40  # what Linux allows in one path
_log = logging.getLogger("preheat.store")


@dataclasses.dataclass(frozen=True)
class Objection:
    """Why a path is not trusted: a sentence, and what to do about it."""

    message: str
    remedy: str


def objection(path: Path, status: os.stat_result, owners: frozenset[int]) -> Objection | None:
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


@dataclasses.dataclass(frozen=True)
class Trust:
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

    def judge(self, path: Path, status: os.stat_result) -> None:
        """Raises ``UntrustedStoreError`` that names ``path``, or logs, or passes."""
        if self.level == "off":
            return
        found = objection(path, status, self.owners)
        if found is None:
            return
        if self.level == "require":
            raise UntrustedStoreError(found.message, remedy=found.remedy)
        _log.warning("%s %s", found.message, found.remedy)

    def judge_directory(self, files: Files, directory: Path) -> Path:
        """Judge every component from ``/`` down, links included. Returns the path without links.

        Raises ``UntrustedStoreError``; ``OSError`` when a component is missing or cannot be seen.
        """
        return walk(files, directory, self.judge)

    def judge_file(self, path: Path, status: os.stat_result) -> None:
        """Judge an opened file. Anything but a regular file is refused at every level."""
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedStoreError(
                f"{path} is not a regular file.", remedy="Remove it; preheat did not put it there."
            )
        self.judge(path, status)


def walk(files: Files, path: Path, visit: Callable[[Path, os.stat_result], None]) -> Path:
    """Visit each component that the kernel passes on the way to ``path``, from ``/`` down.

    Symbolic links are components too, and so is all that they lead through. Returns where ``path``
    leads, without links. ``path`` must be absolute.
    """
    current = Path("/")
    visit(current, files.lstat(current))
    pending = list(reversed(path.parts[1:]))
    links = 0
    while pending:
        name = pending.pop()
        if name == "..":
            current = current.parent
            continue
        candidate = current / name
        status = files.lstat(candidate)
        visit(candidate, status)
        if not stat.S_ISLNK(status.st_mode):
            current = candidate
            continue
        links += 1
        if links > _MAX_LINKS:
            raise UntrustedStoreError(f"{path} leads through more than {_MAX_LINKS} links.")
        target = files.readlink(candidate)
        current = Path("/") if target.is_absolute() else current
        pending.extend(part for part in reversed(target.parts) if part != "/")
    return current
