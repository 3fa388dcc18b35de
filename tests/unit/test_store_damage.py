"""Damage in a store of either kind: ``CorruptedError`` or nothing, never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preheat.errors import CorruptedError, StoreError
from preheat.manifest import ObjectRef, encode, sha256
from support.manifests import ENVIRONMENT, manifest_of
from support.stores import KINDS, Held, held

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = ObjectRef(name="part0", sha256=sha256(b"content"), size=7)


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Held]:
    with tempfile.TemporaryDirectory() as directory:
        yield held(request.param, Path(directory))


@pytest.fixture(autouse=True)
def intact(place: Held) -> None:
    """Each test starts from one whole package, whatever the one before damaged."""
    place.store.put_object(b"content")
    place.store.publish(manifest_of(b"content"))


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
def test_a_damaged_ref_never_leads_to_another_package(place: Held, data: st.DataObject) -> None:
    store = place.store
    ref = store.publish(manifest_of(b"content"))
    place.alter_ref("model", ENVIRONMENT, data.draw(damages(encode(ref))))
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
    place: Held, data: st.DataObject
) -> None:
    store, content = place.store, encode(manifest_of(b"content"))
    place.alter_object(sha256(content), data.draw(damages(content)))
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
    place: Held, damaged: bytes, tmp_path: Path
) -> None:
    source = tmp_path / "content"
    source.write_bytes(b"content")
    for again in (b"content", source):
        place.alter_object(PART.sha256, damaged)
        with pytest.raises(CorruptedError, match=PART.sha256):
            place.store.open_object(PART)
        assert place.store.put_object(again) == (PART.sha256, PART.size)
        place.store.open_object(PART).close()
    assert place.left_over() == []


def test_an_object_of_another_size_is_not_published(place: Held) -> None:
    place.alter_object(PART.sha256, b"conten")
    with pytest.raises(StoreError, match="part0"):
        place.store.publish(manifest_of(b"content"))


def test_a_manifest_of_another_target_is_refused(place: Held) -> None:
    other = place.store.publish(manifest_of(target="other"))
    ref = place.store.publish(manifest_of(b"content"))
    forged = encode(msgspec.structs.replace(ref, manifest=other.manifest))
    place.alter_ref("model", ENVIRONMENT, forged)
    with pytest.raises(CorruptedError, match="another target"):
        place.store.read_package("model", ENVIRONMENT)


def test_a_ref_of_another_target_is_refused(place: Held) -> None:
    other = place.store.publish(manifest_of(target="other"))
    place.alter_ref("model", ENVIRONMENT, encode(other))
    with pytest.raises(CorruptedError, match="another target"):
        place.store.read_ref("model", ENVIRONMENT)
    assert list(place.store.refs("model")) == []


def test_a_vanished_manifest_makes_the_reader_look_again(place: Held) -> None:
    """Between the reader's first look at the ref and the manifest, all moves on."""
    first = place.store.publish(manifest_of(b"content"))
    second_manifest = manifest_of(b"content", b"content")

    def between() -> None:
        place.store.publish(second_manifest)
        place.remove_object(first.manifest)

    reader = place.overtaken(between)
    package = reader.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == second_manifest
    assert reader.read_ref.looks == 2  # type: ignore[attr-defined]


def test_a_manifest_that_stays_away_is_reported(place: Held) -> None:
    ref = place.store.publish(manifest_of(b"content"))
    place.remove_object(ref.manifest)
    with pytest.raises(CorruptedError, match=ref.manifest):
        place.store.read_package("model", ENVIRONMENT)
