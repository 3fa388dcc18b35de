"""Objects that pass in pieces, into a store and out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preheat.errors import CorruptedError
from preheat.manifest import ObjectRef, sha256
from preheat.store import DiskStore
from preheat.store.arrival import PIECE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

DATA = bytes(range(256)) * 40
REF = ObjectRef(name="code", sha256=sha256(DATA), size=len(DATA))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "store", create=True)


def left_over(store: DiskStore) -> list[Path]:
    return list(store.layout.temporary.iterdir())


def test_in_pieces_and_out_again(store: DiskStore) -> None:
    with store.arrival(REF) as arrival:
        for start in range(0, len(DATA), 1000):
            arrival.write(DATA[start : start + 1000])
            assert not store.layout.object(REF.sha256).exists()
        arrival.commit()
    assert store.layout.object(REF.sha256).stat().st_mode & 0o777 == 0o444
    assert b"".join(store.pieces(REF)) == DATA
    assert store.reuse(REF)
    assert left_over(store) == []


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("data", [DATA[:-1], b"", DATA + b"x"], ids=["short", "nothing", "long"])
def test_another_size(store: DiskStore, data: bytes, verified: bool) -> None:
    with (
        pytest.raises(CorruptedError, match="code"),
        store.arrival(REF, verified=verified) as arrival,
    ):
        arrival.write(data)
        arrival.commit()
    assert list(store.object_digests()) == left_over(store) == []


def test_other_bytes(store: DiskStore) -> None:
    with pytest.raises(CorruptedError, match="digest"), store.arrival(REF) as arrival:
        arrival.write(DATA[:-1] + b"x")
        arrival.commit()
    assert list(store.object_digests()) == left_over(store) == []


def test_given_up(store: DiskStore) -> None:
    arrival = store.arrival(REF)
    arrival.write(DATA)
    arrival.discard()
    arrival.discard()
    assert list(store.object_digests()) == left_over(store) == []


def test_a_damaged_object_is_found_at_its_end(store: DiskStore) -> None:
    data = bytes(PIECE_BYTES + 10)
    digest, size = store.put_object(data)
    path = store.layout.object(digest)
    path.chmod(0o644)
    path.write_bytes(data[:-1] + b"x")
    ref = ObjectRef(name="code", sha256=digest, size=size)
    pieces = store.pieces(ref)
    assert len(next(pieces)) == PIECE_BYTES
    with pytest.raises(CorruptedError, match="digest"):
        list(pieces)
    assert not store.reuse(ref)
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptedError, match="the manifest says"):
        list(store.pieces(ref))
    path.unlink()
    with pytest.raises(CorruptedError, match="not in the store"):
        store.pieces(ref)
