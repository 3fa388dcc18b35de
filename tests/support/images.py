"""Lean images made by hand: small, complete, and made without the compiler."""

from __future__ import annotations

import contextlib
import io
import marshal
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from preheat.errors import CorruptedError, MissError
from preheat.image import format as image_format
from preheat.image.codes import entry_code
from preheat.image.format import (
    Access,
    Code,
    ExampleValue,
    Global,
    Graph,
    Image,
    Leaf,
    Modes,
    Root,
    Unit,
    Variant,
)
from preheat.image.load import LoadedImage
from preheat.image.reading import read_image
from preheat.image.surroundings import Surroundings, Tangent, Training
from preheat.image.values import encode, reference
from preheat.sources.digest import code_digest

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping

MODES = Modes(grad=True, inference=False, autocast=())
SETTINGS: dict[str, bool | int] = {
    "skip_tensor_guards_with_matching_dict_tags": True,
    "max_saved_pointers_for_recursive_dict_tags_check": 256,
    "use_recursive_dict_tags_for_guards": False,
}
GRAPH_TEXT = "def call(args):\n    x, = args\n    args.clear()\n    return (x.sin(),)\n"


def program(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """What the image stands for."""
    return x.sin() * scale


def _compiled(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """As transformed bytecode does: the graph, found among the globals."""
    return __compiled_fn_0(x)[0] * scale  # type: ignore[name-defined, no-any-return]  # noqa: F821


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The keys that torch's tensor guards compare."""
    c: Any = torch._C
    keys = c._dispatch_keys(tensor) | c._dispatch_tls_local_include_set()
    return int((keys - c._dispatch_tls_local_exclude_set()).raw_repr())


def tensor_guards(name: str, index: int, example: torch.Tensor) -> tuple[Any, ...]:
    """A tree with one local, which must be a tensor like the example."""
    values = (
        example.dtype,
        example.device,
        example.requires_grad,
        list(example.shape),
        list(example.stride()),
        f"L[{name!r}]",
    )
    arguments = (*map(encode, values), reference(torch.Tensor), encode(dispatch_keys(example)))
    source, kind = f"L[{name!r}]", "GUARD_MANAGER"
    return (
        Root(),
        Access(
            0, "framelocals_manager", encode((name, index)), source, ExampleValue("tensor"), kind
        ),
        Leaf(1, "add_tensor_match_guard", arguments, (f"check_tensor({source})",)),
    )


def variant_for(
    example: torch.Tensor, code: types.CodeType = _compiled.__code__, **changes: Any
) -> Variant:
    """A variant that answers for tensors like the example."""
    made = Variant(
        code=Code(marshal.dumps(code)),
        guards=tensor_guards("x", 0, example),
        call_checks=(),
        load_checks=(),
        modes=MODES,
    )
    return msgspec.structs.replace(made, **changes)


def graph_of(text: str = GRAPH_TEXT, **changes: Any) -> Graph:
    """A graph whose generated code is given as text."""
    made = Graph(
        code=marshal.dumps(compile(text, "<graph>", "exec")),
        entry="call",
        kernels=(),
        names=(("torch", encode(torch)),),
        standins=(),
        constants=(),
        aligned=(),
        mutated=(),
        surroundings=Surroundings(),
    )
    return msgspec.structs.replace(made, **changes)


TRAINING = Training(
    backward=1,
    returned=1,
    unchecked=0,
    numbers=0,
    detached=(),
    unsafe_views=(),
    aliases=(),
    constant=(),
    tangents=(Tangent(0, "contiguous_format"),),
    deterministic=None,
    without_autocast=False,
)


def trained_graphs() -> tuple[Graph, Graph]:
    """A forward graph, and the backward graph that it is joined to."""
    return graph_of(training=TRAINING), graph_of()


def image_of(*variants: Variant, **changes: Any) -> Image:
    """An image of ``program``; by default with one variant, for three numbers."""
    unit = Unit(
        role="main",
        module=__name__,
        names=(),
        source="",
        digest=code_digest(program.__code__),
        original=None,
        entry=entry_code(program.__code__),
        variants=variants or (variant_for(torch.ones(3)),),
    )
    made = Image(
        interpreter=image_format.INTERPRETER,
        torch=str(torch.__version__),
        guard_settings=SETTINGS,
        units=(unit,),
        graphs=(graph_of(),),
        globals=(Global(__name__, "__compiled_fn_0", "graph", 0),),
        weights=(),
    )
    return msgspec.structs.replace(made, **changes)


class Bytes:
    """An opened object that only has its bytes."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self) -> bytes:
        return self._file.read()

    def writable(self) -> bytearray:
        return bytearray(self._file.read())

    def path(self) -> str:
        raise AssertionError("no kernel is loaded from here")

    def close(self) -> None: ...


class Objects:
    """The objects of a package, by name, in memory."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects

    def names(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def open(self, name: str) -> Any:
        if name not in self._objects:
            raise CorruptedError(f"The package has no object named {name!r}.")
        return Bytes(self._objects[name])


class Loaded:
    """A loaded image and the misses that it reported."""

    def __init__(self, image: Image | bytes, fn: Any = program, answer: str = "error") -> None:
        self.misses: list[str] = []
        self._answer = answer
        data = image if isinstance(image, bytes) else image_format.encode(image)
        opener: Any = Objects({"image": data})
        self.image = LoadedImage(fn, read_image(opener), opener, self._decide, _plainly)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.image.call(*args, **kwargs)

    def _decide(self, symbol: str, why: str) -> str:
        self.misses.append(why)
        if self._answer == "error":
            raise MissError(f"{symbol}: {why}")
        return self._answer


def _plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@contextlib.contextmanager
def globals_kept(scope: dict[str, Any]) -> Iterator[set[str]]:
    """The names that are there before; afterwards, what was added is removed."""
    before = set(scope)
    try:
        yield before
    finally:
        for name in set(scope) - before:
            del scope[name]
