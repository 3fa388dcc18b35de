"""The records of an image and their bytes.

An image is one object of a package: a header of fixed size (magic, format, length and sha256 of the
body), then the body in MessagePack. Code objects are marshalled and only meaningful for the very
interpreter that wrote them. Nothing is pickled. A kernel's machine code is an object of its own.
"""

import hashlib
import importlib.util
import marshal
import struct
from typing import Any

import msgspec

from preheat.errors import CorruptedError
from preheat.formats import FORMATS
from preheat.image.record import Record
from preheat.image.surroundings import Surroundings, Training

KIND = "lean"
FORMAT = FORMATS[KIND]
IMAGE_NAME = "image"
CONSTANTS_NAME = "constants"
MAX_IMAGE_BYTES = 512 * 1024 * 1024

_MAGIC = b"preheat image\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sHQ32s")


# --- values ------------------------------------------------------------------------------------


class Constant(Record, frozen=True, tag="c"):
    """Plain constants and containers of them, marshalled: their exact types survive."""

    data: bytes


class Sequence(Record, frozen=True, tag="s"):
    """``kind``: ``tuple``, ``list``, ``set``, ``frozenset``, ``size``, ``slice``, ``range`` or ``keys``."""

    kind: str
    items: tuple["Value", ...]


class Mapping(Record, frozen=True, tag="m"):
    """A ``dict``, an ``OrderedDict`` or a ``mappingproxy``, in order."""

    kind: str
    pairs: tuple[tuple["Value", "Value"], ...]


class Reference(Record, frozen=True, tag="r"):
    """Something that is found by its name.

    ``kind``: ``module`` (name), ``name`` (module, qualified name), ``function`` (as ``name``, with the
    digest of its code), ``enum`` (module, class, member), ``torch`` (name of a dtype, layout or memory
    format), ``operator`` (name, overload), ``packet`` (name), ``device`` (text), ``globals`` (module),
    ``method`` (module, class, attribute).
    """

    kind: str
    path: tuple[str, ...]
    digest: str = ""


class Code(Record, frozen=True, tag="code"):
    """A code object. ``constants`` replace its own where marshal cannot write them."""

    data: bytes
    constants: "tuple[Value, ...] | None" = None


Value = Constant | Sequence | Mapping | Reference | Code


# --- guards ------------------------------------------------------------------------------------


class ExampleValue(Record, frozen=True):
    """What kind of value a guard manager was made for; it decides which shortcuts the manager takes.

    ``kind``: ``object``, ``tensor``, ``constant`` (``value``), or ``mapping`` (``value`` its class,
    ``size`` its length).
    """

    kind: str
    value: Value | None = None
    size: int = 0


class Root(Record, frozen=True, tag="root"):
    """The root of a guard tree."""


class Access(Record, frozen=True, tag="a"):
    """A node that reaches a value from its parent's: ``parent.method(key, source, example, kind)``."""

    parent: int
    method: str
    key: Value | None
    source: str
    example: ExampleValue
    kind: str


class Leaf(Record, frozen=True, tag="l"):
    """A check of a node's value: ``parent.method(*arguments, text)``."""

    parent: int
    method: str
    arguments: tuple[Value, ...]
    text: tuple[str, ...]


class Predicate(Record, frozen=True, tag="p"):
    """A check by a Python function: one of preheat's by name, or marshalled code over ``L`` and ``G``."""

    parent: int
    method: str
    name: str
    code: bytes
    text: tuple[str, ...]
    argument: Value | None = None


class Mark(Record, frozen=True, tag="k"):
    """A property of a node: ``parent.method()``."""

    parent: int
    method: str


class Relation(Record, frozen=True, tag="x"):
    """A check over several nodes. ``names`` are the tensors' names where torch wants them."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    text: tuple[str, ...]


GuardStep = Root | Access | Leaf | Predicate | Mark | Relation


class Check(Record, frozen=True):
    """See ``preheat.torch_internals.payload.Check``; ``expected`` is a marshalled fingerprint."""

    expression: str
    subject: str
    expected: bytes


class Modes(Record, frozen=True):
    """Modes that were on when a variant was compiled."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, str], ...]


# --- graphs ------------------------------------------------------------------------------------


class CppKernel(Record, frozen=True, tag="cpp"):
    """A C++ kernel: the name that generated code calls it by, and the object with its library."""

    name: str
    object: str
    entry: str


class TritonKernel(Record, frozen=True, tag="triton"):
    """A Triton kernel in its one compiled configuration.

    ``object`` holds the GPU's machine code, with the function ``function``. ``launcher`` is the
    marshalled code that Inductor generated to call ``runner(x, y, z, stream, *arguments)`` with the grid
    and the arguments that are left. ``signature``: one character an argument, as torch's static launcher
    takes them, scratch pointers included; ``scratch`` is how many of those there are.
    """

    name: str
    object: str
    function: str
    shared: int
    warps: int
    signature: str
    scratch: int
    launcher: bytes


class ConstantTensor(Record, frozen=True):
    """A tensor that travels in the package, in the bytes of the object ``constants``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int
    device: str


class Graph(Record, frozen=True):
    """One compiled graph.

    ``kind`` is the kind of its code (``preheat.kinds``): ``inductor``; ``eager`` and ``aot_eager``, which
    have no kernels; or one that a distribution adds, whose ``code`` is its own bytes.

    ``code``: the generated module without its header and kernels, marshalled; executed, it defines
    ``entry``. ``names``: what its header gave it, found again by name; ``standins``: names that
    ``preheat.image.standins`` provides. ``aligned``: inputs that must start at a multiple of 16 bytes.
    ``captured``: the graph was built to be a CUDA graph; these inputs are parameters and buffers.
    ``training``: the graph is a forward pass, whose backward pass is another graph of the image.
    """

    code: bytes
    entry: str
    kernels: tuple[CppKernel | TritonKernel, ...]
    names: tuple[tuple[str, Value], ...]
    standins: tuple[tuple[str, str], ...]
    constants: tuple[ConstantTensor, ...]
    aligned: tuple[int, ...]
    mutated: tuple[int, ...]
    surroundings: Surroundings
    captured: tuple[int, ...] | None = None
    training: Training | None = None
    kind: str = "inductor"


# --- code --------------------------------------------------------------------------------------


class Variant(Record, frozen=True):
    """One compiled version of a code object, and everything that guards it."""

    code: Code
    guards: tuple[GuardStep, ...]
    call_checks: tuple[Check, ...]
    load_checks: tuple[Check, ...]
    modes: Modes


class Unit(Record, frozen=True):
    """One code object that was compiled.

    ``role``: ``main`` (the target's), ``wrapped`` (a small function of torch's around the target),
    ``resume`` (what goes on after a graph break) or ``nested`` (a frame of its own). ``original`` is the
    uncompiled code where the worker cannot find it by name; ``entry`` is the marshalled code of its
    entry point. ``source`` and ``names`` find a nested frame's code.
    """

    role: str
    module: str
    names: tuple[str, ...]
    source: str
    digest: str
    original: Code | None
    entry: bytes
    variants: tuple[Variant, ...]


class Global(Record, frozen=True):
    """A global that compiled bytecode looks up, and that the image provides under a name of its own.

    ``kind``: ``graph`` or ``resume`` (``index``), ``standin`` (``value``: a constant, the compiler's
    module), ``module``, ``builtins``, ``value``. ``kept`` names are not renamed.
    """

    module: str
    name: str
    kind: str
    index: int = 0
    value: Value | None = None


class Weight(Record, frozen=True):
    """A parameter or buffer whose values went into compiled code, by digest."""

    name: str
    sha256: str


class Image(Record, frozen=True):
    """Everything but the kernels and the constants' bytes.

    ``units[0]`` is the target's own code. ``weights`` are all of the target's, where some were frozen.
    ``library``: the bytes of a ``LibraryRecord`` (``alone.py``) where one library runs instead of all graphs.
    """

    interpreter: bytes
    torch: str
    guard_settings: dict[str, bool | int]
    units: tuple[Unit, ...]
    graphs: tuple[Graph, ...]
    globals: tuple[Global, ...]
    weights: tuple[Weight, ...]
    library: bytes = b""


INTERPRETER = importlib.util.MAGIC_NUMBER
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Image)


def encode(image: Image) -> bytes:
    """The bytes of an image; the same value has the same bytes."""
    body = _encoder.encode(image)
    return _HEADER.pack(_MAGIC, FORMAT, len(body), hashlib.sha256(body).digest()) + body


def decode(data: bytes | memoryview) -> Image:
    """Read an image.

    Raises ``CorruptedError`` for anything else than the unchanged bytes of ``encode`` by this format,
    before anything in them is interpreted.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise CorruptedError(
            f"The image has {len(data)} bytes, over the limit of {MAX_IMAGE_BYTES}."
        )
    if len(data) < _HEADER.size:
        raise CorruptedError("The image is shorter than its header.")
    magic, number, length, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptedError("The object is no image.")
    if number != FORMAT:
        raise CorruptedError(
            f"The image is of format {number}; this preheat reads format {FORMAT}."
        )
    body = memoryview(data)[_HEADER.size :]
    if len(body) != length or hashlib.sha256(body).digest() != digest:
        raise CorruptedError("The image's bytes are not those that were written.")
    try:
        image: Image = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptedError(f"The image does not decode: {error}.") from error
    return image


def unmarshal(data: bytes) -> Any:
    """A code object or plain constant of this very interpreter version.

    Only for bytes of an image: their digest was verified and the store is trusted.
    """
    return marshal.loads(data)  # noqa: S302
