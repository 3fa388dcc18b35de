"""Things that happen to directories of shared files, each as it happens to a store."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from preheat.errors import CorruptedError, StoreError
from preheat.manifest import encode, sha256
from preheat.sources.files import FileDigests
from preheat.store import DiskStore
from support.faults import NEW, OLD, QuickFiles, opened, publish_old
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest


def reads(store: DiskStore) -> Manifest | None:
    """What a worker would get: the manifest of a package that is whole."""
    package = store.read_package("model", ENVIRONMENT)
    if package is None:
        return None
    for needed in package[1].objects():
        store.open_object(needed).close()
    return package[1]


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    store = opened(tmp_path / "store")
    publish_old(store)
    return store


@pytest.mark.parametrize("written", [b"", NEW[:100]], ids=["nothing", "a part"])
def test_a_writer_that_opened_its_target_and_died(store: DiskStore, written: bytes) -> None:
    """As writers do that know no temporary files: the name is there, the content is not."""
    path = store.layout.object(sha256(NEW))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(written)
    assert reads(store) == manifest_of(OLD)  # nobody asks for it yet
    with pytest.raises(StoreError, match="not in the store"):
        store.publish(manifest_of(NEW))  # its size tells
    store.put_object(NEW)
    store.publish(manifest_of(NEW))
    assert reads(store) == manifest_of(NEW)
    ref = store.layout.ref("model", ENVIRONMENT)
    ref.chmod(0o644)
    ref.write_bytes(ref.read_bytes()[: len(written)])
    with pytest.raises(CorruptedError, match=ref.name):
        reads(store)
    store.publish(manifest_of(NEW))
    assert reads(store) == manifest_of(NEW)


def test_a_mix_of_two_writers_files(store: DiskStore, tmp_path: Path) -> None:
    """Two copies of a store run into one: each name has one writer's file, and the names do not fit."""
    other = opened(tmp_path / "other")
    other.put_object(NEW)
    other.publish(manifest_of(NEW))
    mixed = tmp_path / "mixed"
    shutil.copytree(store.layout.root, mixed)
    shutil.rmtree(mixed / "v1/refs")
    shutil.copytree(other.layout.root / "v1/refs", mixed / "v1/refs")
    reader = DiskStore(mixed)
    with pytest.raises(CorruptedError, match="not in the store"):
        reads(reader)  # the manifest of the other one
    shutil.copytree(other.layout.root / "v1/objects", mixed / "v1/objects", dirs_exist_ok=True)
    assert reads(reader) == manifest_of(NEW)
    # The bytes of one writer under the name of another's.
    path = reader.layout.object(sha256(NEW))
    path.chmod(0o644)
    path.write_bytes(OLD)
    assert len(OLD) == len(NEW)
    with pytest.raises(CorruptedError, match=sha256(NEW)):
        reads(reader)


def test_a_reader_that_meets_temporary_files(store: DiskStore) -> None:
    layout = store.layout
    manifest = layout.object(sha256(encode(manifest_of(OLD))))
    for path in (
        layout.temporary / "host.0123456789ab.1.4567",
        layout.ref("model", ENVIRONMENT).with_suffix(".json.tmp"),
        layout.target("model") / ".x.json.123",
        manifest.with_name(f"{manifest.name}.tmp"),
        layout.refs / "tmp",
    ):
        path.write_bytes(b"half")
    assert reads(store) == manifest_of(OLD)
    assert [ref.target for ref in store.refs()] == ["model"]
    assert len(set(store.object_digests())) == 2


def test_a_store_that_is_cleared_under_a_reader_and_a_writer(store: DiskStore) -> None:
    reader = DiskStore(store.layout.root)
    package = reader.read_package("model", ENVIRONMENT)
    assert package is not None
    (needed,) = package[1].objects()
    held = reader.open_object(needed)
    shutil.rmtree(store.layout.root)
    assert held.read() == OLD  # what was opened stays
    with pytest.raises(CorruptedError, match="not in the store"):
        reader.open_object(needed)
    assert reader.read_package("model", ENVIRONMENT) is None
    assert list(reader.refs()) == []
    publish_old(store)  # the same writer goes on, in a store that it makes anew
    assert reads(reader) == manifest_of(OLD)


def test_times_that_go_backwards_and_files_that_differ_in_content_alone(
    store: DiskStore, tmp_path: Path
) -> None:
    """As after a checkout or an unpacked archive: content decides, in sources and in the store."""
    source = tmp_path / "model.py"
    digests = FileDigests()
    seen = set()
    for number, seconds in enumerate((2_000_000_000, 1_000_000_000, 1_000_000_000, 0)):
        source.write_text(f"FACTOR = {number}\n")
        os.utime(source, (seconds, seconds))
        seen.add(digests.sha256(source))
    assert len(seen) == 4
    path = store.layout.object(sha256(OLD))
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(NEW)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    with pytest.raises(CorruptedError, match="does not have the digest"):
        reads(DiskStore(store.layout.root, files=QuickFiles()))
