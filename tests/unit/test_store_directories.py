"""Directories of a store are made durable once, and once more when they are others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.store.files import Files
from preheat.store.trust import Trust
from preheat.store.writing import Writer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_directory_that_is_made_again_is_made_durable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may give it the very number of the one before."""
    writer = Writer(Files(), Trust.of("off", frozenset()), tmp_path / "tmp")
    synced: list[Path] = []
    monkeypatch.setattr(writer, "sync", synced.append)
    monkeypatch.setattr(writer, "_identity", lambda path: (path.stat().st_dev, 1))
    place = tmp_path / "ab"
    writer.directory(place)
    writer.directory(place)
    assert synced == [tmp_path]
    place.rmdir()
    writer.directory(place)
    assert synced == [tmp_path, tmp_path]
