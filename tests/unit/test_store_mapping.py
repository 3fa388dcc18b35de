"""Large objects are mapped where that is safe, copied where it is not, and the same to whoever reads them."""

from __future__ import annotations

import mmap
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from preheat.errors import CorruptedError
from preheat.manifest import ObjectRef
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.mapping import LEAST_BYTES, may_map
from preheat.store.trust import Trust

if TYPE_CHECKING:
    from pathlib import Path

LARGE = b"0123456789abcdef" * (LEAST_BYTES // 16) + b"end"
REQUIRE = Trust.of("require", frozenset())
DISK = os.makedev(259, 1)


class OnDisk(Files):
    """Says that files are on a disk of this machine, whatever they are on."""

    device = DISK

    def fstat(self, descriptor: int) -> os.stat_result:
        return self._placed(super().fstat(descriptor))

    def _placed(self, status: os.stat_result) -> os.stat_result:
        fields: list[Any] = list(status)
        fields[stat.ST_DEV] = self.device
        return os.stat_result(fields)


class Elsewhere(OnDisk):
    device = os.makedev(0, 40)


def put(root: Path, content: bytes = LARGE) -> ObjectRef:
    digest, size = DiskStore(root, create=True).put_object(content)
    return ObjectRef(name="constants", sha256=digest, size=size)


@pytest.mark.parametrize("files", [OnDisk, Elsewhere])
def test_bytes_are_the_same_and_nobody_elses(tmp_path: Path, files: type[Files]) -> None:
    ref = put(tmp_path / "store")
    opened = DiskStore(tmp_path / "store", files=files()).open_object(ref)
    kept = opened.writable()
    assert isinstance(kept, mmap.mmap) == (files is OnDisk)
    assert opened.read() == LARGE
    opened.close()
    kept[:5] = b"other"
    assert bytes(kept[:8]) == b"other567"  # kept beyond the end, and changed for this process alone
    again = DiskStore(tmp_path / "store", files=files()).open_object(ref)
    assert again.read() == LARGE
    again.close()
    assert DiskStore(tmp_path / "store").layout.object(ref.sha256).read_bytes() == LARGE


@pytest.mark.parametrize("files", [OnDisk, Elsewhere])
@pytest.mark.parametrize("damage", ["flipped", "shortened", "emptied", "lengthened"])
def test_damage_is_seen_in_either_way(tmp_path: Path, files: type[Files], damage: str) -> None:
    ref = put(tmp_path / "store")
    path = DiskStore(tmp_path / "store").layout.object(ref.sha256)
    path.chmod(0o644)
    flipped = LARGE[:-1] + b"!"
    damaged = {"flipped": flipped, "shortened": LARGE[:-1], "emptied": b"", "lengthened": LARGE * 2}
    path.write_bytes(damaged[damage])
    path.chmod(0o444)
    with pytest.raises(CorruptedError):
        DiskStore(tmp_path / "store", files=files()).open_object(ref)


def test_an_object_stays_whole_in_memory_when_it_is_replaced_or_removed(tmp_path: Path) -> None:
    """What writers and collections do: rename and unlink."""
    ref = put(tmp_path / "store")
    opened = DiskStore(tmp_path / "store", files=OnDisk()).open_object(ref)
    kept = opened.writable()
    opened.close()
    DiskStore(tmp_path / "store").layout.object(ref.sha256).unlink()
    put(tmp_path / "store")
    assert kept[:] == LARGE


def test_what_may_be_mapped() -> None:
    def status(size: int = LEAST_BYTES, device: int = DISK) -> Any:
        return SimpleNamespace(st_size=size, st_dev=device)

    assert may_map(REQUIRE, status())
    assert not may_map(REQUIRE, status(size=LEAST_BYTES - 1))
    assert not may_map(REQUIRE, status(device=os.makedev(0, 52)))  # over a network, for one
    assert not may_map(Trust.of("warn", frozenset()), status())  # whoever may change it
    assert not may_map(Trust.of("off", frozenset()), status())


def test_what_cannot_be_mapped_is_read(tmp_path: Path) -> None:
    class Unmappable(OnDisk):
        def map(self, descriptor: int, size: int) -> mmap.mmap:
            raise OSError(19, "No such device")

    opened = DiskStore(tmp_path / "store", files=Unmappable()).open_object(put(tmp_path / "store"))
    assert isinstance(opened.writable(), bytearray)
    assert opened.read() == LARGE
    opened.close()


def test_small_objects_are_copied(tmp_path: Path) -> None:
    opened = DiskStore(tmp_path, create=True).open_object(put(tmp_path, b"small"))
    kept = opened.writable()
    opened.close()
    assert isinstance(kept, bytearray)
    assert kept == b"small"
