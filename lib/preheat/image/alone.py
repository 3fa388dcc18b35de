"""Records that stand outside of an image, and their bytes: a program as a library, a traced graph by itself.

Apart from ``format.py``, because most workers load neither.
"""

import msgspec

from preheat.errors import CorruptedError
from preheat.image.format import INTERPRETER, ConstantTensor, Graph, Weight
from preheat.image.record import Record


class LibraryConstant(Record, frozen=True):
    """A constant of a library: the live module's tensor at ``attribute``, as it has to be."""

    attribute: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str


class LibraryRecord(Record, frozen=True):
    """A program as a library, apart from the library itself.

    ``code``, marshalled, defines ``run`` with the program's own parameters, and ``misfit``, which says what
    of arguments by name is not as the library was built for. ``values``: tensors of the module that are
    neither parameters nor buffers; their values are in the library. ``stored``: the bytes of
    ``tensors``, constants that belong to the program's code. ``capability``: the GPU's.
    """

    code: bytes
    device: str
    constants: tuple[LibraryConstant, ...]
    values: tuple[Weight, ...]
    tensors: tuple[ConstantTensor, ...]
    stored: bytes
    capability: tuple[int, ...] = ()


class TracedGraphs(Record, frozen=True):
    """One traced graph by itself, as the dynamo form holds it: its backward graph comes second."""

    graphs: tuple[Graph, ...]
    constants: bytes
    interpreter: bytes = INTERPRETER


_encoder = msgspec.msgpack.Encoder()
_library_decoder = msgspec.msgpack.Decoder(LibraryRecord)
_traced_decoder = msgspec.msgpack.Decoder(TracedGraphs)


def encode_library(record: LibraryRecord) -> bytes:
    """The bytes of a library's record."""
    return _encoder.encode(record)


def decode_library(data: bytes) -> LibraryRecord:
    """Read a library's record. Raises ``CorruptedError`` for anything else."""
    try:
        record: LibraryRecord = _library_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptedError(f"The record of a library does not decode: {error}.") from error
    return record


def encode_traced(graphs: TracedGraphs) -> bytes:
    """The bytes of one traced graph."""
    return _encoder.encode(graphs)


def decode_traced(data: bytes) -> TracedGraphs:
    """Read a traced graph. Raises ``CorruptedError`` for what is none, or is of another interpreter."""
    try:
        graphs: TracedGraphs = _traced_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptedError(f"A traced graph does not decode: {error}.") from error
    if graphs.interpreter != INTERPRETER or not graphs.graphs:
        raise CorruptedError("A traced graph is of another interpreter, or is empty.")
    return graphs
