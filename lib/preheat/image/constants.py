"""Tensors that travel in a package: one object holds the bytes of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError
from preheat.image.format import ConstantTensor
from preheat.image.values import UnportableError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping, Sequence

    from preheat.store.protocol import ObjectOpener

_ALIGNMENT = 64


def write_constants(
    graphs: Sequence[Mapping[str, torch.Tensor]],
) -> tuple[bytes, list[tuple[ConstantTensor, ...]]]:
    """The bytes of all tensors, and for each graph where its tensors lie in them.

    Raises ``UnportableError`` for a tensor that is more than numbers in memory.
    """
    data = bytearray()
    records = []
    for tensors in graphs:
        made = []
        for name, tensor in sorted(tensors.items()):
            data += bytes(-len(data) % _ALIGNMENT)
            content = _content(tensor)
            made.append(
                ConstantTensor(
                    name=name,
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    shape=tuple(tensor.shape),
                    stride=tuple(tensor.stride()),
                    offset=len(data),
                    size=len(content),
                    device=tensor.device.type,
                )
            )
            data += content
        records.append(tuple(made))
    return bytes(data), records


def _content(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise UnportableError(f"a graph holds a tensor that is stored as {kind}")
    length = _extent(tuple(tensor.shape), tuple(tensor.stride()))
    flat = torch.as_strided(tensor.detach(), (length,), (1,)).cpu().contiguous()
    if not length:
        return b""
    content = bytearray(flat.numel() * flat.element_size())
    # Not by way of numpy, which torch works without.
    torch.frombuffer(content, dtype=torch.uint8).copy_(flat.view(torch.uint8))
    return bytes(content)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def read_constants(
    opener: ObjectOpener, name: str, records: Sequence[Sequence[ConstantTensor]]
) -> list[dict[str, torch.Tensor]]:
    """For each graph its tensors by name. Raises ``CorruptedError`` for records outside of the bytes."""
    opened = opener.open(name)
    try:
        data = opened.writable()
    finally:
        opened.close()
    return constants_in(data, records)


def constants_in(
    data: bytearray | mmap.mmap, records: Sequence[Sequence[ConstantTensor]]
) -> list[dict[str, torch.Tensor]]:
    """The same of bytes at hand, which the tensors keep and share."""
    return [{record.name: _tensor(record, data) for record in graph} for graph in records]


def _tensor(record: ConstantTensor, data: bytearray | mmap.mmap) -> torch.Tensor:
    dtype: Any = getattr(torch, record.dtype, None)
    if (
        len(record.shape) != len(record.stride)
        or min((*record.shape, *record.stride), default=0) < 0
    ):
        raise CorruptedError(f"Constant {record.name!r} has no such shape.")
    length = _extent(record.shape, record.stride)
    if not isinstance(dtype, torch.dtype) or record.size != length * dtype.itemsize:
        raise CorruptedError(f"Constant {record.name!r} does not describe its bytes.")
    if record.offset < 0 or record.offset + record.size > len(data):
        raise CorruptedError(f"Constant {record.name!r} lies outside of its object.")
    if length == 0:
        return torch.empty_strided(record.shape, record.stride, dtype=dtype, device=record.device)
    raw = torch.frombuffer(data, dtype=torch.uint8, count=record.size, offset=record.offset)
    # Of mapped bytes no copy is made: the tensor keeps the mapping, and its pages are shared until written.
    own = raw.clone() if isinstance(data, bytearray) else raw
    flat = own.view(dtype).to(record.device)
    return torch.as_strided(flat, record.shape, record.stride)
