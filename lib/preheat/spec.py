"""What a project writes: a factory, marked with ``@preheat.target``, that returns a ``Spec``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from preheat.errors import TargetError

Factory = Callable[[], "Spec"]
_F = TypeVar("_F", bound=Callable[[], Any])

MARK = "__preheat_target__"


class Example:
    """The arguments of one call that the package must cover: ``Example(*args, **kwargs)``."""

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"Example({len(self.args)} positional, {sorted(self.kwargs)} by name)"


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """What to keep warm: a callable, and calls that the package must cover.

    ``fn``: a function, bound method or ``torch.nn.Module``. Its parameters are never stored: a worker
    brings its own.

    ``examples``: one entry a call, a tuple of positional arguments or an ``Example``. Shapes, dtypes
    and devices of these are what is covered; values are not looked at, except where the program's own
    control flow depends on them.

    ``grad``: whether calls run with gradients enabled. Default: as ``backward`` says. The callable that
    ``preheat.load`` returns applies it, so a target declared without gradients returns outputs
    without gradients in the worker as well.

    ``backward``: the package also covers the backward pass. After each call the outputs that
    require gradients are summed and ``backward()`` is called, unless ``run`` does it.

    ``mode``, ``dynamic``, ``fullgraph``, ``options``, ``backend``: as ``torch.compile`` takes them.

    ``cuda_graphs``: false keeps CUDA graphs away from this target, whatever ``mode``, ``options`` or the
    configuration of Inductor say: they take memory of their own and copy inputs and results.

    ``output``: ``aoti`` makes one shared library of the whole program (AOTInductor through torch.export), for
    inference with a module whose calls lead to one graph. ``dynamic_shapes``: which dimensions may vary, as
    ``torch.export.export`` takes it; all others are those of the first example.

    ``context``: a context manager, or a function without arguments that returns one, entered around
    every example (``torch.autocast``, ``torch.inference_mode``). A worker enters its own: a call made
    outside of such a context is not covered.

    ``run``: how one example is exercised, ``run(compiled, *args, **kwargs)``; what it returns is
    compared with eager. Default: the call itself.

    Not promised: that a call with other shapes than the examples' is covered. Such a call follows
    the worker's ``on_miss`` policy.
    """

    fn: Callable[..., Any]
    examples: Sequence[tuple[Any, ...] | Example]
    grad: bool | None = None
    backward: bool = False
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: Mapping[str, Any] | None = None
    backend: str = "inductor"
    cuda_graphs: bool = True
    output: str | None = None
    dynamic_shapes: Any = None
    context: Any = None
    run: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TargetError(f"Spec.fn must be callable, not {type(self.fn).__name__}.")
        if isinstance(self.examples, (str, bytes)) or not isinstance(self.examples, Sequence):
            raise TargetError(
                f"Spec.examples must be a list of tuples or preheat.Example, not "
                f"{type(self.examples).__name__}."
            )
        if not self.examples:
            raise TargetError("Spec.examples is empty: at least one example call is needed.")
        for index, example in enumerate(self.examples):
            if not isinstance(example, (tuple, Example)):
                raise TargetError(
                    f"Spec.examples[{index}] must be a tuple of arguments or preheat.Example, not "
                    f"{type(example).__name__}."
                )
        if self.backward and self.grad is False:
            raise TargetError("Spec(backward=True) needs gradients; grad=False contradicts it.")
        if self.mode is not None and self.options is not None:
            raise TargetError("Spec takes mode= or options=, not both, like torch.compile.")
        if self.output not in (None, "aoti"):
            raise TargetError(f"Spec.output must be None or 'aoti', not {self.output!r}.")
        if self.output is None and self.dynamic_shapes is not None:
            raise TargetError(
                "Spec.dynamic_shapes is for output='aoti'; otherwise there is dynamic=."
            )
        if self.output == "aoti" and (self.grad_enabled or self.backend != "inductor"):
            raise TargetError(
                "Spec(output='aoti') is for inference: grad=True, backward= and backend= are not."
            )
        if not isinstance(self.backend, str):
            raise TargetError("Spec.backend must be the name of a torch.compile backend.")

    @property
    def grad_enabled(self) -> bool:
        """Whether calls run with gradients enabled."""
        return self.backward if self.grad is None else self.grad

    def calls(self) -> list[Example]:
        """The examples in one form."""
        return [item if isinstance(item, Example) else Example(*item) for item in self.examples]

    def enter_context(self) -> contextlib.AbstractContextManager[Any]:
        """The context of one example, ready for ``with``."""
        if self.context is None:
            return contextlib.nullcontext()
        if hasattr(self.context, "__enter__"):
            manager: contextlib.AbstractContextManager[Any] = self.context
            return manager
        made: contextlib.AbstractContextManager[Any] = self.context()
        return made


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What ``@preheat.target`` leaves on a factory."""

    name: str


@overload
def target(factory: _F, /) -> _F: ...
@overload
def target(*, name: str | None = None) -> Callable[[_F], _F]: ...
def target(factory: Any = None, /, *, name: str | None = None) -> Any:
    """Mark a function without arguments that returns a ``Spec`` as a target.

    ``name`` defaults to the function's name. The function is returned unchanged, apart from the mark.
    """

    def mark(function: Callable[[], Any]) -> Callable[[], Any]:
        setattr(function, MARK, Declaration(name or function.__name__))
        return function

    return mark if factory is None else mark(factory)
