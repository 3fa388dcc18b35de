"""The format of bundles: what a good one is, and that nothing else is one."""

from __future__ import annotations

import io
import random
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.errors import BundleError
from preheat.manifest import encode
from preheat.store import bundle_format as form
from preheat.store import bundle_headers as headers
from preheat.store.bundle_parser import (
    End,
    IndexRead,
    ManifestRead,
    ManifestsRead,
    ObjectBegins,
    ObjectBytes,
    ObjectEnds,
    SignatureRead,
)
from support.bundles import DECODER, ENCODER, archive, exported, parsed, proven, two_packages

if TYPE_CHECKING:
    from pathlib import Path

MANIFESTS = (proven(*DECODER, target="decoder"), proven(*ENCODER, target="encoder"))
GOOD = archive(MANIFESTS, (*DECODER, *ENCODER))
SIGNED = archive(MANIFESTS[:1], DECODER, signatures=(b"one", b"two"))


def contents(data: bytes, piece: int = 1 << 20) -> tuple[list[str], set[bytes]]:
    """The order of events, and the objects."""
    kinds, objects, current = [], set(), b""
    for event in parsed(data, piece=piece):
        match event:
            case ObjectBytes(some):
                current += bytes(some)
                continue
            case ObjectBegins():
                current = b""
            case ObjectEnds():
                objects.add(current)
        kinds.append(type(event).__name__)
    return kinds, objects


def test_what_is_in_a_bundle_and_in_which_order() -> None:
    kinds, objects = contents(GOOD)
    begin = [one.__name__ for one in (IndexRead, ManifestRead, ManifestRead, ManifestsRead)]
    each = [one.__name__ for one in (ObjectBegins, ObjectEnds)]
    assert kinds == begin + each * 4 + [End.__name__]
    assert objects == {*DECODER, *ENCODER}


@pytest.mark.parametrize("piece", [1, 7, 511, 512, 513])
def test_it_does_not_matter_how_the_bytes_arrive(piece: int) -> None:
    assert contents(GOOD, piece) == contents(GOOD)


def test_signature_records_are_carried_beside_their_manifest() -> None:
    events = parsed(SIGNED)
    kinds = [type(one) for one in events[:5]]
    assert kinds == [IndexRead, ManifestRead, SignatureRead, SignatureRead, ManifestsRead]
    records = {one.data for one in events if isinstance(one, SignatureRead)}
    assert records == {b"one", b"two"}


def test_the_archive_follows_from_its_index() -> None:
    for data in (GOOD, SIGNED):
        (index,) = (one.index for one in parsed(data) if isinstance(one, IndexRead))
        assert form.total_bytes(index, len(encode(index))) == len(data)


def test_other_programs_can_look_inside() -> None:
    with tarfile.open(fileobj=io.BytesIO(SIGNED)) as archive_:
        listed = archive_.getmembers()
        assert listed[0].name == form.INDEX_NAME
        assert all(
            one.isreg() and one.mode == 0o444 and one.mtime == one.uid == 0 for one in listed
        )
        inner = {archive_.extractfile(one).read() for one in listed[1:]}  # type: ignore[union-attr]
    assert inner == {encode(MANIFESTS[0]), b"one", b"two", *DECODER}


@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 2**36])
def test_a_header_of_any_size_is_one_that_tar_knows(size: int) -> None:
    info = tarfile.TarInfo.frombuf(headers.header("objects/x", size), "ascii", "strict")
    assert (info.name, info.size, info.type) == ("objects/x", size, tarfile.REGTYPE)


def test_the_same_packages_have_the_same_bytes(tmp_path: Path) -> None:
    first = exported(two_packages(tmp_path / "a"), tmp_path / "one")
    second = exported(two_packages(tmp_path / "b"), tmp_path / "two", "encoder", "decoder")
    assert first == second == GOOD


def test_signatures_in_any_order_have_the_same_bytes() -> None:
    assert archive(MANIFESTS[:1], DECODER, signatures=(b"two", b"one")) == SIGNED


@pytest.mark.parametrize(
    ("signatures", "words"),
    [((b"x",) * 2, "twice"), ((bytes(form.MAX_SIGNATURE_BYTES + 1),), "the limit is")],
)
def test_signatures_beyond_the_limits(signatures: tuple[bytes, ...], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        form.make_index([(MANIFESTS[0], signatures)])
    many = tuple(str(number).encode() for number in range(form.MAX_SIGNATURES + 1))
    with pytest.raises(BundleError, match="over the limit"):
        form.make_index([(MANIFESTS[0], many)])


@given(st.binary(max_size=3000), st.integers(1, 700))
def test_any_bytes_are_refused(data: bytes, piece: int) -> None:
    with pytest.raises(BundleError):
        parsed(data, piece=piece)


@given(st.integers(0, len(SIGNED) - 1), st.binary(min_size=1, max_size=600))
def test_a_bundle_with_a_stretch_of_other_bytes(place: int, other: bytes) -> None:
    data = SIGNED[:place] + other + SIGNED[place + len(other) :]
    if data == SIGNED:
        assert parsed(data)
        return
    with pytest.raises(BundleError):
        parsed(data)


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, len(GOOD))), max_size=4))
def test_a_bundle_whose_pieces_were_moved(cuts: list[tuple[int, int]]) -> None:
    data = b"".join(GOOD[start:end] for start, end in cuts)
    if data == GOOD:
        return
    with pytest.raises(BundleError):
        parsed(data)


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_shuffled_blocks(seed: int, swaps: int) -> None:
    """Whole blocks in another order: every header and every content is intact."""
    size = headers.BLOCK_BYTES
    blocks = [GOOD[start : start + size] for start in range(0, len(GOOD), size)]
    chance = random.Random(seed)  # noqa: S311
    for _ in range(swaps):
        one, other = chance.sample(range(len(blocks)), 2)
        blocks[one], blocks[other] = blocks[other], blocks[one]
    data = b"".join(blocks)
    if data != GOOD:
        with pytest.raises(BundleError):
            parsed(data)


@given(
    st.dictionaries(
        st.text("abcd", min_size=1, max_size=3),
        st.lists(st.binary(max_size=1100), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_is_exported_is_read_again(packages: dict[str, list[bytes]]) -> None:
    manifests = [proven(*parts, target=name) for name, parts in packages.items()]
    objects = {part for parts in packages.values() for part in parts}
    data = archive(manifests, objects)
    assert contents(data)[1] == objects
    found = {one.manifest.target for one in parsed(data) if isinstance(one, ManifestRead)}
    assert found == set(packages)
