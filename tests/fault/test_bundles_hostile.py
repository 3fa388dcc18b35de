"""Bundles that are not what they should be: each is refused with its reason, nothing is imported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hostile_bundles as hostile
import pytest

from preheat.errors import BundleError
from preheat.store import DiskStore
from preheatd.arriving import Arrivals
from preheatd.bundles.importing import Importer, import_bundle
from support.bundles import parsed

if TYPE_CHECKING:
    from pathlib import Path


def imported(file: Path, store: Path, *, length: int | None) -> None:
    importer = Importer(lambda: DiskStore(store, create=True), Arrivals(None), length=length)
    asyncio.run(import_bundle(file, importer))


def assert_nothing_of_it(store: Path) -> None:
    """No name leads to anything; objects that are there are what they are named; nothing is left over."""
    opened = DiskStore(store)
    assert list(opened.refs()) == []
    if not store.exists():
        return
    assert list(opened.layout.temporary.iterdir()) == []
    known = {part.sha256 for part in hostile.INDEX.objects}
    assert set(opened.object_digests()) <= known


@pytest.mark.parametrize("name", hostile.CASES)
@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
def test_a_hostile_bundle(name: str, piped: bool, tmp_path: Path) -> None:
    data, words = hostile.CASES[name]
    file = tmp_path / "bundle"
    file.write_bytes(data)
    with pytest.raises(BundleError, match=words) as raised:
        imported(file, tmp_path / "store", length=None if piped else len(data))
    assert raised.value.message.startswith(f"{file}: ")
    assert_nothing_of_it(tmp_path / "store")
    assert sorted(path.name for path in tmp_path.iterdir()) in (["bundle"], ["bundle", "store"])


def test_the_bundle_that_they_are_made_of_is_good(tmp_path: Path) -> None:
    file = tmp_path / "bundle"
    file.write_bytes(hostile.GOOD)
    imported(file, tmp_path / "store", length=len(hostile.GOOD))
    assert [ref.target for ref in DiskStore(tmp_path / "store").refs()] == ["decoder", "encoder"]


def test_every_cut_is_refused() -> None:
    for end in range(len(hostile.GOOD)):
        with pytest.raises(BundleError, match="cut off"):
            parsed(hostile.GOOD[:end])


def test_every_altered_byte_is_refused() -> None:
    for place in range(len(hostile.GOOD)):
        data = bytearray(hostile.GOOD)
        data[place] ^= 0x01
        with pytest.raises(BundleError):
            parsed(bytes(data))
