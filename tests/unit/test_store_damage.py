"""Damaged files of a disk store: ``CorruptedError`` or nothing, never another exception."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat.errors import CorruptedError, UntrustedStoreError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    ObjectRef,
    encode,
    sha256,
)
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preheat.manifest import Ref

PART = ObjectRef(name="part0", sha256=sha256(b"content"), size=7)


@pytest.fixture(scope="module")
def store() -> Iterator[DiskStore]:
    with tempfile.TemporaryDirectory() as directory:
        yield DiskStore(directory, create=True)


@pytest.fixture(autouse=True)
def intact(store: DiskStore) -> None:
    """Each test starts from one whole package, whatever the one before damaged."""
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def damages(data: bytes) -> st.SearchStrategy[bytes]:
    """Flipped bytes, a truncation, or something else altogether."""
    positions = st.integers(0, len(data) - 1)

    def flip(changes: dict[int, int]) -> bytes:
        flipped = bytearray(data)
        for position, mask in changes.items():
            flipped[position] ^= mask
        return bytes(flipped)

    flips = st.dictionaries(positions, st.integers(1, 255), min_size=1, max_size=4).map(flip)
    truncated = positions.map(lambda size: data[:size])
    other_json = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(msgspec.json.encode)
    return flips | truncated | st.binary(max_size=200) | other_json


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_ref_never_leads_to_another_package(
    store: DiskStore, data: st.DataObject
) -> None:
    path = store.layout.ref("model", ENVIRONMENT)
    ref = store.publish(manifest_of(b"content"))
    rewrite(path, data.draw(damages(encode(ref))))
    try:
        package = store.read_package("model", ENVIRONMENT)
    except CorruptedError:
        package = None
    # A ref carries no digest of itself; its generation may be off, the package may not.
    assert package is None or package[1] == manifest_of(b"content")
    assert all(listed.target == "model" for listed in store.refs())
    assert store.publish(manifest_of(b"content")).generation >= 1
    assert store.read_package("model", ENVIRONMENT) is not None


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_manifest_is_refused_and_publishing_repairs_it(
    store: DiskStore, data: st.DataObject
) -> None:
    content = encode(manifest_of(b"content"))
    rewrite(store.layout.object(sha256(content)), data.draw(damages(content)))
    with pytest.raises(CorruptedError):
        store.read_package("model", ENVIRONMENT)
    with pytest.raises(CorruptedError):
        store.read_manifest(sha256(content))
    store.publish(manifest_of(b"content"))
    assert store.read_package("model", ENVIRONMENT) is not None


@pytest.mark.parametrize(
    "damaged", [b"", b"conten", b"content+", b"Content"], ids=["empty", "short", "long", "altered"]
)
def test_a_damaged_object_is_refused_and_putting_it_again_repairs_it(
    store: DiskStore, damaged: bytes, tmp_path: Path
) -> None:
    source = tmp_path / "content"
    source.write_bytes(b"content")
    for again in (b"content", source):
        rewrite(store.layout.object(PART.sha256), damaged)
        with pytest.raises(CorruptedError, match=PART.sha256):
            store.open_object(PART)
        assert store.put_object(again) == (PART.sha256, PART.size)
        store.open_object(PART).close()
    assert list(store.layout.temporary.iterdir()) == []


def test_an_object_of_another_size_is_not_published(store: DiskStore) -> None:
    rewrite(store.layout.object(PART.sha256), b"conten")
    with pytest.raises(Exception, match="part0"):
        store.publish(manifest_of(b"content"))
    store.put_object(b"content")


def test_a_manifest_of_another_target_is_refused(store: DiskStore) -> None:
    other = store.publish(manifest_of(target="other"))
    ref = store.publish(manifest_of(b"content"))
    path = store.layout.ref("model", ENVIRONMENT)
    rewrite(path, encode(msgspec.structs.replace(ref, manifest=other.manifest)))
    with pytest.raises(CorruptedError, match="another target"):
        store.read_package("model", ENVIRONMENT)


def test_a_ref_of_another_target_is_refused(store: DiskStore) -> None:
    other = store.publish(manifest_of(target="other"))
    rewrite(store.layout.ref("model", ENVIRONMENT), encode(other))
    with pytest.raises(CorruptedError, match="another target"):
        store.read_ref("model", ENVIRONMENT)
    assert list(store.refs("model")) == []


def test_sizes_are_capped_before_reading(store: DiskStore) -> None:
    ref = store.publish(manifest_of(b"content"))
    path = store.layout.ref("model", ENVIRONMENT)
    for damaged, limit in (
        (store.layout.object(ref.manifest), MAX_MANIFEST_BYTES),
        (path, MAX_REF_BYTES),
    ):
        rewrite(damaged, b"")
        with damaged.open("wb") as file:
            file.truncate(limit + 1)
        with pytest.raises(CorruptedError, match="over the limit"):
            store.read_package("model", ENVIRONMENT)


def test_a_link_in_place_of_a_file_is_refused(store: DiskStore, tmp_path: Path) -> None:
    for path, read in (
        (store.layout.object(PART.sha256), lambda: store.open_object(PART)),
        (
            store.layout.ref("model", ENVIRONMENT),
            lambda: store.read_ref("model", ENVIRONMENT),
        ),
    ):
        moved = path.rename(tmp_path / path.name)
        path.symlink_to(moved)
        with pytest.raises(UntrustedStoreError, match="symbolic link"):
            read()
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    assert store.read_package("model", ENVIRONMENT) is not None


def test_what_is_no_file_is_refused_without_waiting(store: DiskStore) -> None:
    path = store.layout.object(PART.sha256)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UntrustedStoreError, match="not a regular file"):
        store.open_object(PART)
    store.put_object(b"content")
    store.open_object(PART).close()


def test_a_vanished_manifest_makes_the_reader_look_again(store: DiskStore) -> None:
    first = store.publish(manifest_of(b"content"))
    second_manifest = manifest_of(b"content", b"content")

    class Overtaken(DiskStore):
        """Between the reader's first look at the ref and the manifest, all moves on."""

        looks = 0

        def read_ref(self, target: str, environment: str) -> Ref | None:
            ref = super().read_ref(target, environment)
            self.looks += 1
            if self.looks == 1:
                store.publish(second_manifest)
                store.layout.object(first.manifest).unlink()
            return ref

    reader = Overtaken(store.layout.root)
    package = reader.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == second_manifest
    assert reader.looks == 2


def test_a_manifest_that_stays_away_is_reported(store: DiskStore) -> None:
    ref = store.publish(manifest_of(b"content"))
    store.layout.object(ref.manifest).unlink()
    with pytest.raises(CorruptedError, match=ref.manifest):
        store.read_package("model", ENVIRONMENT)
