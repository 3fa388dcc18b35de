"""The two forms of a package, each put in place for a live program; and what stands in for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from preheat.errors import CorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.manifest import Form, ObjectRef, SpecRecord
    from preheat.store.protocol import ObjectOpener, OpenObject, Store

FormKind = Literal["lean", "dynamo"]


class LoadedForm(Protocol):
    """A form that was loaded: ``call`` is called like the program."""

    @property
    def call(self) -> Callable[..., Any]: ...
    @property
    def uninstall(self) -> Callable[[], None]: ...


class FormOpener:
    """Opens the objects of one form by their names inside of the package."""

    def __init__(self, store: Store, form: Form) -> None:
        self._store = store
        self._objects: dict[str, ObjectRef] = {ref.name: ref for ref in form.objects}

    def names(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def open(self, name: str) -> OpenObject:
        if name not in self._objects:
            raise CorruptedError(f"The package has no object named {name!r}.")
        return self._store.open_object(self._objects[name])


def install_form(
    fn: Any,
    kind: str,
    opener: ObjectOpener,
    decide: Callable[[str, str], str],
    compile_plainly: Callable[[Any], Callable[..., Any]],
) -> LoadedForm:
    """Install a form for the live program ``fn``.

    ``decide(symbol, why)`` is asked about each call that no variant covers; it says ``compile`` or
    ``eager``, or raises. ``compile_plainly`` makes what runs then, where the form cannot by itself.

    Raises ``IncompatibleError`` with reasons when the form does not fit this process, and
    ``CorruptedError`` for objects that do not belong together.
    """
    if kind == "dynamo":
        from preheat.torch_internals.dynamo_form import install_dynamo_form

        return install_dynamo_form(fn, opener, decide)
    from preheat.image.load import LoadedImage
    from preheat.image.reading import read_image

    return LoadedImage(fn, read_image(opener), opener, decide, compile_plainly)


def with_grad(call: Callable[..., Any], grad: bool) -> Callable[..., Any]:
    """Calls run with gradients only where the target was declared with them."""
    if grad:
        return call
    import torch

    is_enabled = torch.is_grad_enabled
    set_enabled = torch._C._set_grad_enabled

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_enabled():
            return call(*args, **kwargs)
        set_enabled(False)
        try:
            return call(*args, **kwargs)
        finally:
            set_enabled(True)

    return run


def plainly_compiled(fn: Any, spec: SpecRecord | None) -> Callable[..., Any]:
    """``torch.compile`` of ``fn``, as the target was declared where that is known."""
    import torch

    if spec is None:
        plain: Callable[..., Any] = torch.compile(fn)
        return plain
    backend: Any = spec.backend
    if backend == "regional_inductor":
        from preheat.torch_internals.regional import regional_backend as backend

    compiled: Callable[..., Any] = torch.compile(
        fn,
        backend=backend,
        mode=spec.mode,
        dynamic=spec.dynamic,
        fullgraph=spec.fullgraph,
        options=dict(spec.options) or None,  # type: ignore[arg-type]
    )
    return compiled
