"""Process groups that a daemon left running when it was killed: noted while it lives, ended by the next one.

Build, proof and forking processes end with the daemon by themselves (``preheat.lifeline``). What they had
started need not, such as a compiler or a child of user code; neither need an interpreter behind a wrapper.

A number alone says nothing: it may be another process's by now, or have been noted before a restart of
the machine, or in a container. Nothing is ended that is not known to have been ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.store.temporary import process_space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GROUPS_NAME = "groups"
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.02
# Fields of /proc/PID/stat after the name, see proc(5).
_STATE, _GROUP, _SESSION, _STARTED = 0, 2, 3, 19


@dataclasses.dataclass(frozen=True)
class Seen:
    """One process; ``started`` in clock ticks after boot."""

    pid: int
    group: int
    session: int
    started: int


@dataclasses.dataclass(frozen=True)
class Noted:
    """A process that led a group and a session of its own, where ``space`` says whose number it is."""

    pid: int
    started: int
    space: str


def note_group(directory: Path, pid: int) -> None:
    """Record in an owned directory that this process started the process group ``pid``."""
    leader = _look(pid)
    if leader is not None:
        with (directory / _GROUPS_NAME).open("a", encoding="ascii") as file:
            file.write(f"{pid} {leader.started} {process_space()}\n")


def end_groups(directory: Path) -> int:
    """End what is left of the groups noted there, and wait until it is gone. Says how many processes.

    ``directory`` is two levels below the state directory.
    """
    ended: set[int] = set()
    noted = list(_noted(directory / _GROUPS_NAME))
    until = time.monotonic() + _END_SECONDS
    # Again and again: what is ended last may just have started another one.
    while noted and time.monotonic() < until:
        left = members(noted, list(_processes()), process_space(), directory.parents[1])
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(left)
        time.sleep(_LOOK_SECONDS)
    return len(ended)


def members(
    noted: Iterable[Noted], processes: Iterable[Seen], space: str, state: Path
) -> list[int]:
    """The processes that belong to the noted groups.

    While the leader lives, its start tells it from a later process with its number. Without it the
    members must show that they were started for a build below ``state``: their variables name it.
    """
    found = {}
    by_number = {one.pid: one for one in processes}
    for note in noted:
        leader = by_number.get(note.pid)
        if note.space != space or (leader is not None and leader.started != note.started):
            continue
        for one in by_number.values():
            ours = note.pid in (one.group, one.session) and one.started >= note.started
            if ours and (leader is not None or _names(one.pid, state)):
                found[one.pid] = one
    return list(found)


def _names(pid: int, state: Path) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # another user's, or gone
    return b"=" + os.fsencode(state) + b"/" in variables


def _noted(path: Path) -> Iterator[Noted]:
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            words = line.split(" ")
            if len(words) == 3 and words[0].isdecimal() and words[1].isdecimal():
                yield Noted(int(words[0]), int(words[1]), words[2])


def _processes() -> Iterator[Seen]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of them, several times
        if name.isdecimal() and (seen := _look(int(name))) is not None:
            yield seen


def _look(pid: int) -> Seen | None:
    """None when there is no such process, or it has ended and only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if fields[_STATE] in ("Z", "X"):
        return None
    return Seen(pid, int(fields[_GROUP]), int(fields[_SESSION]), int(fields[_STARTED]))
