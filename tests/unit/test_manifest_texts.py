"""The texts of the sources in a package: how they are kept, carried and left alone; other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from preheat.errors import CorruptedError, OtherFormatError, StoreError
from preheat.manifest import (
    FORMAT,
    ModuleSource,
    Sources,
    decode_manifest,
    decode_ref,
    encode,
    sha256,
)
from preheat.recording import texts
from preheat.recording.texts import keep_texts
from preheat.store import DiskStore, MemoryStore, copy_package
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = (b"A = 1\n", b"", b"B = 2\n", b"A = 1\n")


def sources_of(*contents: bytes) -> Sources:
    return Sources(
        modules=tuple(
            ModuleSource(
                module=f"m{number}",
                root=0,
                path=f"m{number}.py",
                file_sha256=sha256(content),
                digest="",
            )
            for number, content in enumerate(contents)
        )
    )


def kept(store: MemoryStore | DiskStore, *contents: bytes) -> Sources:
    return keep_texts(
        sources_of(*contents), {sha256(one): one for one in contents}, store.put_object
    )


def test_equal_texts_are_one_object_and_travel_with_the_package(tmp_path: Path) -> None:
    staging, store = MemoryStore(), DiskStore(tmp_path / "store", create=True)
    staging.put_object(b"code")
    manifest = msgspec.structs.replace(manifest_of(b"code"), sources=kept(staging, *TEXTS))
    assert [ref.name for ref in manifest.code_objects()] == ["part0"]
    assert [ref.name for ref in manifest.objects()] == [
        "part0",
        "source/m0.py",
        "source/m1.py",
        "source/m2.py",
    ]
    with pytest.raises(StoreError, match=r"m\d.py"):
        store.put_object(b"code")
        store.publish(manifest)
    copy_package(staging, store, manifest)
    store.publish(manifest)
    found = store.read_package("model", ENVIRONMENT)
    assert found is not None
    for module, text in zip(found[1].sources.modules, TEXTS, strict=True):
        ref = module.text()
        assert ref is not None
        opened = store.open_object(ref)
        assert opened.read() == text
        opened.close()


def test_large_texts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_FILE_BYTES", 4)
    monkeypatch.setattr(texts, "MAX_PACKAGE_BYTES", 6)
    store = MemoryStore()
    sources = kept(store, b"12345", b"1234", b"abc", b"ab", b"1234")
    assert [module.kept for module in sources.modules] == [None, 4, None, 2, 4]
    assert sources.modules[0].text() is None


def test_a_text_that_nobody_has_is_left_out() -> None:
    sources = keep_texts(sources_of(b"A"), {}, MemoryStore().put_object)
    assert sources == sources_of(b"A")


@pytest.mark.parametrize("number", [1, FORMAT + 1])
def test_another_format_is_said_and_not_the_field_in_the_way(number: int) -> None:
    record = msgspec.json.decode(encode(manifest_of()))
    record.update(format=number, invented=1)
    del record["live"]
    with pytest.raises(OtherFormatError, match=f"has format {number}"):
        decode_manifest(msgspec.json.encode(record))
    with pytest.raises(OtherFormatError):
        decode_ref(b'{"format": 7}')


def test_damage_is_not_taken_for_another_format() -> None:
    for damaged in (b"", b"{", b"[]", b'{"format": "2"}', b'{"format": 3}'):
        with pytest.raises(CorruptedError) as raised:
            decode_manifest(damaged)
        assert not isinstance(raised.value, OtherFormatError)
