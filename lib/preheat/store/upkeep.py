"""Removing left-over temporary files, and moving damaged files out of the way."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from preheat.store.failures import GONE, writing
from preheat.store.temporary import is_leftover, process_space

if TYPE_CHECKING:
    import datetime
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.layout import Layout
    from preheat.store.reading import Reader
    from preheat.store.writing import Writer


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Lies beside a quarantined file: which file of the store it was, and why it is here."""

    origin: str
    reason: str


def sweep(files: Files, reader: Reader, layout: Layout, now: datetime.datetime) -> tuple[Path, ...]:
    """Unlink temporary files without a writer; returns those. One that resists is left for next time."""
    removed = []
    for name in reader.names(layout.temporary):
        with contextlib.suppress(OSError), reader.directory(layout.temporary) as directory:
            age_seconds = now.timestamp() - files.lstat(name, directory).st_mtime
            if is_leftover(
                name, age_seconds, space=process_space(), process_exists=files.process_exists
            ):
                files.unlink(name, directory)
                removed.append(layout.temporary / name)
    return tuple(removed)


def quarantine(writer: Writer, layout: Layout, path: Path, reason: str) -> Path | None:
    """Move a file into the quarantine, with a note beside it. None when there is no such file."""
    place = layout.quarantine / f"{path.name}.{secrets.token_hex(8)}"
    note = QuarantineNote(origin=str(path.relative_to(layout.root)), reason=reason)
    note_path = place.with_name(f"{place.name}.note")
    with writing(path):
        writer.put(note_path, msgspec.json.encode(note))
        try:
            writer.rename(path, place)
        except OSError as error:
            writer.discard(note_path)
            if error.errno in GONE:
                return None
            raise
        writer.sync(layout.quarantine)
        writer.sync(path.parent)
    return place
