"""Making a directory a store, and telling whether one is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from preheat.errors import StoreError
from preheat.store.failures import writing
from preheat.store.layout import (
    CACHEDIR_TAG_TEXT,
    FORMAT_TEXT,
    MAX_FORMAT_BYTES,
    OWN_NAMES,
    Layout,
    is_damaged_format,
)

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.reading import Reader
    from preheat.store.writing import Writer

# What file systems put into a directory by themselves, at a mount point or on NFS.
_INNOCENT_NAMES = frozenset({"lost+found"})
_INNOCENT_PREFIX = ".nfs"


def is_innocent(name: str) -> bool:
    """Whether file systems put something of this name into a directory by themselves."""
    return name in _INNOCENT_NAMES or name.startswith(_INNOCENT_PREFIX)


def is_founded(reader: Reader, layout: Layout) -> bool:
    """Whether a store of the known format is there; False when nothing is, or not yet.

    Raises ``StoreError`` for another format.
    """
    text = reader.read(layout.format_file, MAX_FORMAT_BYTES)
    if text is None:
        return False
    if is_damaged_format(text):
        raise StoreError(
            f"{layout.format_file} is damaged: {len(text)} bytes that no version of preheat wrote.",
            remedy="Run `preheat fsck --repair`.",
        )
    if text != FORMAT_TEXT:
        found, known = (part.decode("utf-8", "replace").strip() for part in (text, FORMAT_TEXT))
        raise StoreError(
            f"{layout.root} is a store of another format: {layout.format_file} says {found!r}, "
            f"this version of preheat knows {known!r}.",
            remedy="Use the version of preheat that made it, or choose another store with "
            "PREHEAT_STORE.",
        )
    return True


def found(files: Files, reader: Reader, writer: Writer, layout: Layout) -> None:
    """Make a store at ``layout.root``, or finish one whose making was interrupted.

    Raises ``StoreError`` for a directory that holds other things: a tag that keeps backup programs
    out must not land in somebody's home. Several processes may do this at once.
    """
    with writing(layout.root):
        for parent in reversed(layout.root.parents):
            _make_parent(files, reader, parent)
        _make_parent(files, reader, layout.root)
    _refuse_foreign(reader, layout)
    with writing(layout.root):
        for directory in layout.directories:
            writer.directory(directory)
        writer.directory(layout.state, 0o700)
        writer.put(layout.cachedir_tag, CACHEDIR_TAG_TEXT)
        # Last: a directory with FORMAT is a whole store.
        writer.put(layout.format_file, FORMAT_TEXT)


def make_durable(writer: Writer, layout: Layout) -> None:
    """Whoever made the store may have died before its names were on the disk. Raises ``OSError``."""
    for directory in (layout.version, layout.root, layout.root.parent):
        with contextlib.suppress(PermissionError):  # another account's, who made this one's place
            writer.sync(directory)


def _make_parent(files: Files, reader: Reader, path: Path) -> None:
    # The mode is the umask's business here: the root's mode says who may enter the store at all.
    try:
        files.lstat(path)
    except FileNotFoundError:
        with reader.directory(path.parent) as parent:
            try:
                files.mkdir(path.name, 0o755, parent)
            except FileExistsError:
                return
            files.fsync_directory(".", parent)


def _refuse_foreign(reader: Reader, layout: Layout) -> None:
    for name in reader.names(layout.root):
        if name not in OWN_NAMES and not is_innocent(name):
            raise StoreError(
                f"{layout.root} is not a store and not empty: it holds {name!r}.",
                remedy="Choose an empty or new directory for the store.",
            )
