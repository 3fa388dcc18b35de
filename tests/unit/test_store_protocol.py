"""What every store does: the same tests over the disk store and the memory store."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from preheat.errors import CorruptedError, StoreError
from preheat.manifest import (
    ObjectRef,
    encode,
    sha256,
)
from preheat.store import DiskStore, MemoryStore, Store, copy_package
from preheat.store.mapping import LEAST_BYTES
from support.manifests import ENVIRONMENT, manifest_of
from support.stores import KINDS, Held, held


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    return held(request.param, tmp_path / "store")


@pytest.fixture
def store(place: Held) -> Store:
    return place.store


def put(store: Store, data: bytes, name: str = "part") -> ObjectRef:
    digest, size = store.put_object(data)
    return ObjectRef(name=name, sha256=digest, size=size)


def test_it_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)
    assert store.location


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert store.read_ref("model", ENVIRONMENT) is None
    assert store.read_package("model", ENVIRONMENT) is None
    assert list(store.refs()) == list(store.refs("model")) == []
    with pytest.raises(CorruptedError, match="not in the store"):
        store.read_manifest("0" * 64)
    with pytest.raises(CorruptedError, match="not in the store"):
        store.open_object(ObjectRef(name="part", sha256="0" * 64, size=1))


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 40_000])
def test_an_object_comes_back_as_it_was_put(store: Store, content: bytes) -> None:
    ref = put(store, content)
    assert (ref.sha256, ref.size) == (sha256(content), len(content))
    opened = store.open_object(ref)
    assert opened.read() == content
    assert Path(opened.path()).read_bytes() == content
    opened.close()
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened.path()
    with pytest.raises(ValueError, match="closed"):
        opened.read()


@pytest.mark.parametrize("content", [b"small", b"0123456789abcdef" * (LEAST_BYTES // 16) + b"end"])
def test_bytes_to_change_are_nobody_elses(place: Held, content: bytes) -> None:
    """They last beyond the object, its removal and its replacement, and the store's stay as they are."""
    ref = put(place.store, content)
    opened = place.store.open_object(ref)
    assert opened.read() == content
    kept = opened.writable()
    kept[:2] = b"my"
    opened.close()
    place.remove_object(ref.sha256)
    with pytest.raises(CorruptedError, match="not in the store"):
        place.store.open_object(ref)
    put(place.store, content)
    assert bytes(kept) == b"my" + content[2:]
    again = place.store.open_object(ref)
    assert again.read() == content
    again.close()


def test_a_file_is_put_like_its_bytes(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "kernel.so"
    source.write_bytes(b"binary" * 100)
    assert store.put_object(source) == (sha256(b"binary" * 100), 600)
    assert store.put_object(source) == store.put_object(b"binary" * 100)


def test_a_file_that_cannot_be_read_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing\.so"):
        store.put_object(tmp_path / "nothing.so")
    with pytest.raises(StoreError, match=str(tmp_path)):
        store.put_object(tmp_path)


def test_an_object_of_another_size_than_declared_is_refused(store: Store) -> None:
    ref = put(store, b"content")
    with pytest.raises(CorruptedError, match="the manifest says 8"):
        store.open_object(msgspec.structs.replace(ref, size=8))


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_a_manifest_cannot_choose_a_path(store: Store, digest: str) -> None:
    with pytest.raises(CorruptedError):
        store.open_object(ObjectRef(name="part", sha256=digest, size=1))
    with pytest.raises(CorruptedError):
        store.read_manifest(digest)


def test_what_is_published_is_found(store: Store) -> None:
    put(store, b"one")
    ref = store.publish(manifest_of(b"one"))
    assert (ref.target, ref.environment, ref.generation) == ("model", ENVIRONMENT, 1)
    assert ref.manifest == sha256(encode(manifest_of(b"one")))
    assert store.read_ref("model", ENVIRONMENT) == ref
    assert store.read_manifest(ref.manifest) == manifest_of(b"one")
    assert store.read_package("model", ENVIRONMENT) == (ref, manifest_of(b"one"))
    assert store.read_ref("other", ENVIRONMENT) is None
    assert store.read_ref("model", "other") is None


def test_generations_count_up_and_old_manifests_stay(store: Store) -> None:
    put(store, b"one")
    put(store, b"two")
    first, second = store.publish(manifest_of(b"one")), store.publish(manifest_of(b"two"))
    assert (first.generation, second.generation) == (1, 2)
    assert store.read_package("model", ENVIRONMENT) == (second, manifest_of(b"two"))
    assert store.read_manifest(first.manifest) == manifest_of(b"one")


def test_a_manifest_without_its_objects_is_not_published(store: Store) -> None:
    put(store, b"one")
    before = store.publish(manifest_of(b"one"))
    with pytest.raises(StoreError, match="part1") as raised:
        store.publish(manifest_of(b"one", b"never put"))
    assert not isinstance(raised.value, CorruptedError)
    assert store.read_ref("model", ENVIRONMENT) == before


@pytest.mark.parametrize("text", ["\ud800", float("nan")])
def test_a_manifest_that_would_not_read_back_is_not_published(store: Store, text: object) -> None:
    manifest = manifest_of()
    build = msgspec.structs.replace(manifest.build, seconds={"import": text})
    with pytest.raises(StoreError, match="no JSON form"):
        store.publish(msgspec.structs.replace(manifest, build=build))
    assert store.read_ref("model", ENVIRONMENT) is None


def test_all_refs_are_listed(store: Store) -> None:
    names = ["a", "b/c", ".hidden", "ünï", "", "x" * 500]
    published = [store.publish(manifest_of(target=name)) for name in names]
    assert sorted(store.refs(), key=repr) == sorted(published, key=repr)
    for name, ref in zip(names, published, strict=True):
        assert list(store.refs(name)) == [ref]
        assert store.read_ref(name, ENVIRONMENT) == ref


def test_threads_that_publish_one_name_leave_one_of_theirs(store: Store) -> None:
    contents = [f"{number}".encode() for number in range(8)]
    barrier = threading.Barrier(len(contents))
    failures: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            barrier.wait()
            store.put_object(content)
            store.put_object(b"shared by all")
            store.publish(manifest_of(content, b"shared by all"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] in [manifest_of(content, b"shared by all") for content in contents]
    for needed in package[1].objects():
        store.open_object(needed).close()


def test_a_package_is_copied_but_not_published(store: Store, tmp_path: Path) -> None:
    for destination in (MemoryStore(), DiskStore(tmp_path / "destination", create=True)):
        put(store, b"one")
        put(store, b"two")
        copy_package(store, destination, manifest_of(b"one", b"two"))
        assert list(destination.refs()) == []
        destination.publish(manifest_of(b"one", b"two"))


def test_a_package_with_a_missing_object_is_not_copied(store: Store) -> None:
    with pytest.raises(CorruptedError):
        copy_package(store, MemoryStore(), manifest_of(b"never put"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_libraries_opened_one_after_the_other_are_not_mistaken(
    store: Store, tmp_path: Path
) -> None:
    # Their descriptors have the same number, and the dynamic linker goes by the spelling of the path.
    answers = []
    for number in (1, 2, 3):
        source = tmp_path / f"{number}.c"
        source.write_text(f"int answer(void) {{ return {number}; }}")
        library = source.with_suffix(".so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        digest, size = store.put_object(library)
        opened = store.open_object(ObjectRef(name="library", sha256=digest, size=size))
        answers.append(ctypes.CDLL(opened.path()).answer())
        opened.close()
    assert answers == [1, 2, 3]
