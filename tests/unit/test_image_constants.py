"""Tensors that travel in a package: exactly what they were, and never read outside of their object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given, settings

from preheat.errors import CorruptedError
from preheat.image.constants import read_constants, write_constants
from preheat.image.values import UnportableError
from support.images import Objects

if TYPE_CHECKING:
    from preheat.image.format import ConstantTensor

TENSORS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(12, dtype=torch.int16)[::3],
    "expanded": torch.tensor([1.0, 2.0])[:, None].expand(2, 4),
    "inside of another": torch.arange(9.0)[3:5],
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.empty(0, 5),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.tensor([1.0, float("nan"), -0.0], dtype=torch.bfloat16),
    "complex64": torch.tensor([1 + 2j, 3j]),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "float8_e4m3fn": torch.ones(4).to(torch.float8_e4m3fn),
}


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def read(data: bytes, records: Any) -> list[dict[str, torch.Tensor]]:
    return read_constants(Objects({"constants": data}), "constants", records)


def test_tensors_come_back_bit_for_bit_with_their_layout() -> None:
    data, records = write_constants([TENSORS, {}, {"again": TENSORS["scalar"]}])
    first, second, third = read(data, records)
    assert list(first) == sorted(TENSORS)
    assert second == {}
    assert third["again"] == 3.5
    for name, tensor in TENSORS.items():
        again = first[name]
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape), name
        assert tensor.numel() == 0 or again.stride() == tensor.stride(), name
        assert bits(again) == bits(tensor), name
        assert not again.requires_grad, name
        assert again.data_ptr() % 16 == 0, name


def test_no_two_tensors_share_memory() -> None:
    data, records = write_constants([{"a": torch.zeros(3), "b": torch.zeros(3)}])
    first, second = read(data, records)[0], read(data, records)[0]
    first["a"].add_(1)
    assert first["b"].sum() == second["a"].sum() == 0


def test_without_constants_nothing_is_written() -> None:
    assert write_constants([{}, {}]) == (b"", [(), ()])


DATA, (RECORDS,) = write_constants([{"x": torch.arange(8.0).reshape(2, 4)}])


def changed(**fields: Any) -> ConstantTensor:
    return msgspec.structs.replace(RECORDS[0], **fields)


@pytest.mark.parametrize(
    "record",
    [
        changed(dtype="no_such_dtype"),
        changed(dtype="ones"),
        changed(dtype="float64"),
        changed(shape=(2, 5)),
        changed(shape=(2,)),
        changed(shape=(-2, 4)),
        changed(stride=(400, 1)),
        changed(stride=(-4, 1)),
        changed(offset=-1),
        changed(offset=1),
        changed(offset=2**62),
        changed(size=31),
        changed(size=-1),
        changed(shape=(2**40, 2**40), size=2**82),
        changed(shape=(0,), stride=(1,), size=4),
    ],
    ids=repr,
)
def test_records_outside_of_their_bytes_are_corrupt(record: ConstantTensor) -> None:
    with pytest.raises(CorruptedError, match="'x'"):
        read(DATA, [(record,)])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-2, 9), max_size=3),
    st.lists(st.integers(-2, 9), max_size=3),
    st.integers(-4, 40),
    st.integers(-4, 40),
)
def test_no_record_reads_memory_that_is_not_its_own(
    shape: list[int], stride: list[int], offset: int, size: int
) -> None:
    record = changed(shape=tuple(shape), stride=tuple(stride), offset=offset, size=size)
    try:
        made = read(DATA, [(record,)])[0]["x"]
    except CorruptedError:
        return
    assert offset >= 0
    assert 0 <= made.untyped_storage().nbytes() <= len(DATA)
    assert tuple(made.shape) == tuple(shape)
    made.sum()


def test_shortened_bytes_are_corrupt() -> None:
    with pytest.raises(CorruptedError):
        read(DATA[:-1], [RECORDS])


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.eye(3).to_sparse(), "sparse_coo"),
        (torch.ones(3, 3).to_mkldnn(), "_mkldnn"),
    ],
    ids=["sparse", "packed"],
)
def test_a_tensor_that_is_more_than_numbers_in_memory_is_refused(
    tensor: torch.Tensor, kind: str
) -> None:
    with pytest.raises(UnportableError, match=f"stored as {kind}"):
        write_constants([{"constant": tensor}])
