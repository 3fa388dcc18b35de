"""What ``preheat doctor`` finds: pure decisions on what was measured."""

from __future__ import annotations

from typing import Literal

import msgspec

MIN_FREE_BYTES = 2 * 1024**3
MIN_FREE_INODES = 20_000
MAX_CLOCK_SKEW_SECONDS = 2.0
# A project has some hundred directories; libraries, and other programs of the same user, want some too.
SPARE_WATCHES = 4096
MIN_INSTANCES = 64

Level = Literal["ok", "note", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``fix``: the command or change that makes a problem go away."""

    check: str
    level: Level
    detail: str
    fix: str = ""


def watch_limits(watches: int, instances: int, wanted: int) -> Finding:
    """The kernel's limits of inotify, for so many directories."""
    detail = (
        f"{wanted} directories to watch; the limits are {watches} watches, {instances} instances"
    )
    if watches < wanted + SPARE_WATCHES:
        fix = f"sysctl fs.inotify.max_user_watches={max(524_288, 2 * wanted)}"
        return Finding(check="inotify", level="problem", detail=detail, fix=fix)
    if instances < MIN_INSTANCES:
        fix = "sysctl fs.inotify.max_user_instances=512"
        return Finding(check="inotify", level="problem", detail=detail, fix=fix)
    return Finding(check="inotify", level="ok", detail=detail)


def room(where: str, free_bytes: int, free_inodes: int, inodes: int) -> Finding:
    """Room on a disk. File systems that make inodes as they go report none at all."""
    detail = f"{where}: {free_bytes / 1024**3:.1f} GiB free"
    if inodes:
        detail += f", {free_inodes} inodes free"
    short = free_bytes < MIN_FREE_BYTES or (inodes and free_inodes < MIN_FREE_INODES)
    if not short:
        return Finding(check="room", level="ok", detail=detail)
    return Finding(
        check="room",
        level="problem",
        detail=detail,
        fix="Free some space, or set `store` and PREHEAT_STATE to another disk.",
    )


def clock(where: str, skew_seconds: float) -> Finding:
    """How far the file system's clock is ahead of this machine's."""
    detail = f"files in {where} are dated {skew_seconds:+.1f} s from this machine's clock"
    if abs(skew_seconds) <= MAX_CLOCK_SKEW_SECONDS:
        return Finding(check="clock", level="ok", detail=detail)
    fix = "timedatectl set-ntp true  # here and on the file server"
    return Finding(check="clock", level="problem", detail=detail, fix=fix)


def file_system(where: str, failed: dict[str, str], kind: str) -> Finding:
    """What a directory's file system can do; ``failed`` says of each ability why it is missing."""
    name = kind or "unknown"
    if failed:
        what = "; ".join(f"{ability}: {why}" for ability, why in failed.items())
        fix = "Set `store` to a directory on a local disk that is not mounted noexec."
        detail = f"{where} ({name}) cannot do what a store needs: {what}"
        return Finding(check="file system", level="problem", detail=detail, fix=fix)
    detail = f"{where} ({name}): rename, fsync, flock and mapping of code work"
    return Finding(check="file system", level="ok", detail=detail)


def keys(
    level: str, file: str | None, trusted: list[str], own: str | None, *, state_inside: bool
) -> Finding:
    """Keys that are trusted, by id, the one that signs here, and what builds trust without a signature."""
    signs = f"signs with {own}" if own else "signs nothing here"
    detail = f"signatures: {level}; {len(trusted)} trusted keys in {file or 'no file'}; {signs}"
    fix = ""
    if not trusted and own is None:
        fix = "preheat keys trust 'ed25519 ...'  # or set PREHEAT_SIGNATURES=off"
    elif own is not None and own not in trusted:
        detail += ", which workers that trust this file do not trust"
        fix = "preheat keys trust  # with the public key that `preheat keys list` shows"
    elif own is not None and state_inside:
        detail += "; whoever can write to the store could write to the daemon's state as well"
        fix = "Set PREHEAT_STATE to a directory outside of the store."
    return Finding(check="keys", level="problem" if fix else "ok", detail=detail, fix=fix)


def compiler(target: str, found: str | None, wanted: tuple[str, ...]) -> Finding:
    """The C++ compiler of a target's builds."""
    if found:
        return Finding(check="compiler", level="ok", detail=f"{target}: {found}")
    detail = f"{target}: no C++ compiler (looked for {', '.join(wanted)})"
    fix = "apt install g++  # or set CXX in `env` of the target"
    return Finding(check="compiler", level="problem", detail=detail, fix=fix)
