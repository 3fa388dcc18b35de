"""The records of what AOTAutograd does around a compiled graph, its backward pass included.

The rules are AOTAutograd's own (``torch/_functorch/_aot_autograd/runtime_wrappers.py``).
"""

from preheat.image.record import Record


class OutputRule(Record, frozen=True):
    """What an output is: ``plain``, ``input`` (the input itself), ``view`` of an input, or
    ``inner view`` of another output. ``base`` is that input's or output's position."""

    kind: str
    base: int = 0
    requires_grad: bool = False


class MutationRule(Record, frozen=True):
    """How an input is brought up to date afterwards: ``data``, ``metadata``, ``both``, ``storage``."""

    index: int
    kind: str
    leaf: bool


class Surroundings(Record, frozen=True):
    """What AOTAutograd does around a graph, with a backward pass or without.

    ``versions``: inputs whose version counter rises. ``outputs`` is empty when all are plain.
    ``arguments``: for a graph whose inputs are given once although the call repeats them, the positions
    to pass on; empty: all.
    """

    without_autocast: bool = False
    versions: tuple[int, ...] = ()
    mutations: tuple[MutationRule, ...] = ()
    outputs: tuple[OutputRule, ...] = ()
    grad_after: bool | None = None
    arguments: tuple[int, ...] = ()


class Tangent(Record, frozen=True):
    """A gradient that the backward graph takes: the one of result ``position`` of the forward graph.

    It is brought into the memory format of that name (``contiguous_format``), or, where that is empty,
    into this shape and these strides.
    """

    position: int
    memory_format: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


class Training(Record, frozen=True):
    """How a forward graph is joined to the backward graph at ``backward`` in the image.

    Of what the forward graph gives, the first ``returned`` are results; then come tensors that are kept
    for the backward pass, the last ``unchecked`` of them without a look at their versions, then
    ``numbers`` sizes. ``detached``: inputs through which no gradient flows. Among the results,
    ``unsafe_views`` are made views of nothing, ``aliases`` are hidden from autograd, ``constant`` ones
    need no gradient. ``deterministic``: whether deterministic algorithms were asked for in the build;
    None where it does not matter.
    """

    backward: int
    returned: int
    unchecked: int
    numbers: int
    detached: tuple[int, ...]
    unsafe_views: tuple[int, ...]
    aliases: tuple[int, ...]
    constant: tuple[int, ...]
    tangents: tuple[Tangent, ...]
    deterministic: bool | None
    without_autocast: bool
