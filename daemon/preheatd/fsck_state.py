"""What ``preheat fsck`` says about the daemon's records in the state directory, and does about them.

A damaged record counts as none, so it never stops the daemon; here it is named.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from preheat.store.facts import Finding, Repair
from preheatd.history import history_files, is_entry
from preheatd.probe import ProbeAnswer
from preheatd.state import Damages, Failure, FreshProof, Published, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import msgspec

    from preheatd.state import State

# What a record is for, as the consequence of its damage.
_RECORDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "failures": (Failure, "the target is tried again at once"),
    "published": (Published, "an edit that is undone may cost a build"),
    "proofs": (FreshProof, "the next build of the target is proven in a really fresh process"),
    "probes": (ProbeAnswer, "the interpreter is asked again"),
    "damages": (Damages, "a package that is damaged again is built again at once"),
}
# Nobody takes an hour to write a record.
_LEFTOVER_SECONDS = 3600.0
_QUARANTINE = "quarantine"


def examine(state: State) -> tuple[Finding, ...]:
    """What is to be said about the records. Nothing where there are none, or they cannot be seen."""
    return tuple([*_about_records(state), *_about_history(state)])


def put_away(state: State, finding: Finding) -> str:
    """Move a damaged record out of the way, or remove what was left over. Raises ``OSError``."""
    path = state.path / finding.place.removeprefix(f"{state.path}/")
    if finding.kind == "leftover":
        path.unlink(missing_ok=True)
        return "removed"
    if not _is_damaged(path):
        return ""  # the daemon wrote it anew
    directory = state.path / _QUARANTINE
    directory.mkdir(mode=0o700, exist_ok=True)
    moved = directory / f"{path.name}.{secrets.token_hex(8)}"
    path.replace(moved)
    return f"moved to {moved}"


def _about_records(state: State) -> Iterator[Finding]:
    for directory, (_, consequence) in _RECORDS.items():
        for path in _files(state.path / directory):
            if path.name.startswith("."):
                if _age_seconds(path) > _LEFTOVER_SECONDS:
                    yield _finding("leftover", path, "was left behind by a writer that is gone")
            elif path.suffix == ".json" and _is_damaged(path):
                yield _finding(
                    "record_damaged", path, f"is damaged and counts as none: {consequence}"
                )


def _about_history(state: State) -> Iterator[Finding]:
    for path in history_files(state):
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            continue
        damaged = sum(not is_entry(line) for line in lines)
        if damaged:
            detail = f"has {damaged} of {len(lines)} lines that cannot be read; they are left out"
            yield Finding(kind="history_damaged", level="note", place=str(path), detail=detail)


def _is_damaged(path: Path) -> bool:
    kind, _ = _RECORDS[path.parent.name]
    return path.exists() and read_record(path, kind) is None


def _finding(kind: str, path: Path, detail: str) -> Finding:
    return Finding(
        kind=kind,
        level="note",
        place=str(path),
        detail=detail,
        fix="`preheat fsck --repair` moves it away.",
        repair=Repair.REMOVE_RECORD,
    )


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_file())
    except OSError:
        return []


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
