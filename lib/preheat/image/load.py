"""A lean image as a callable: everything that a worker does with one."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError, IncompatibleError
from preheat.image import format as image_format
from preheat.image.call_checks import CallChecks, Check, add_call_checks, guard_text, holds
from preheat.image.codes import (
    GuardedVariant,
    Variants,
    entry_point,
    renamed,
    variant_function,
)
from preheat.image.format import CONSTANTS_NAME, IMAGE_NAME, INTERPRETER, CppKernel, unmarshal
from preheat.image.graphs import make_graph
from preheat.image.guards import Guards, with_names
from preheat.image.kernels import load_cpp_kernel
from preheat.image.operators import spare_the_compiler
from preheat.image.standins import guard_helpers
from preheat.image.standins import module as standin_module
from preheat.image.values import decode, decode_code, import_module, on_device
from preheat.sources.digest import code_digest
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preheat.image.format import Global, Graph, Image, Unit, Variant
    from preheat.image.nested import NestedFrames
    from preheat.store.protocol import ObjectOpener

_numbers = itertools.count()

Decide = "Callable[[str, str], str]"

# What records that do not fit together raise.
_NONSENSE = (
    AttributeError,
    LookupError,
    OverflowError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)


# Names that mean the same for every package; others have a number of the build process in them.
_SAME_EVERYWHERE = ("__import_", "__builtins_dict__")


class LoadedImage:
    """One loaded image. ``call`` is called like the program that it was built from."""

    def __init__(
        self,
        fn: Any,
        image: Image,
        opener: ObjectOpener,
        decide: Callable[[str, str], str],
        compile_plainly: Callable[[Any], Callable[..., Any]],
    ) -> None:
        self._image = image
        self._opener = opener
        self._decide = decide
        self._compile_plainly = compile_plainly
        self._suffix = f"__preheat_{next(_numbers)}"
        self._names = {
            one.name: one.name + self._suffix
            for one in image.globals
            if not one.name.startswith(_SAME_EVERYWHERE) or one.kind == "standin"
        }
        self._globals: list[tuple[dict[str, Any], str]] = []
        self._foreign_scopes: dict[str, dict[str, Any]] = {}
        self._skipped: list[Reason] = []
        self._compiled: dict[int | None, Callable[..., Any]] = {}
        self._only_gpu = not any(isinstance(k, CppKernel) for g in image.graphs for k in g.kernels)
        self._device = device_index(fn)
        self._main_scope = _globals_of(fn)
        self._same_weights = self._compared_weights(fn)
        spare_the_compiler()
        self._hooked = any(unit.role == "nested" and unit.variants for unit in image.units)
        try:
            with on_device(self._device):
                self.call = self._put_together(fn)
        except _NONSENSE as error:
            _remove(self._globals)
            detail = f"{type(error).__name__}: {error}"[:300]
            raise CorruptedError(f"The image cannot be put together here: {detail}.") from error
        except ImportError as error:
            _remove(self._globals)
            reason = Reason(kind="load_failed", detail=str(error)[:300])
            raise IncompatibleError(reasons=[reason]) from error
        except BaseException:
            _remove(self._globals)
            raise
        # The names live as long as what looks them up.
        weakref.finalize(self.call, _remove, self._globals)

    @functools.cached_property
    def _nested(self) -> NestedFrames:
        from preheat.image.nested import NestedFrames

        return NestedFrames(_weakly(self._nested_missed))

    def _compared_weights(self, fn: Any) -> Callable[[Any], bool] | None:
        if not self._image.weights:
            return None
        from preheat.image.weights import SameWeights

        return SameWeights(fn, self._image.weights)

    def _put_together(self, fn: Any) -> Callable[..., Any]:
        self._provide_globals(self._graphs())
        self.call = self._target(fn)
        return self._with_nested_frames() if self._hooked else self.call

    def _with_nested_frames(self) -> Callable[..., Any]:
        from preheat.image.installed import Installed

        for unit in self._image.units:
            if unit.role == "nested" and unit.variants:
                self._add_nested(unit)
        installed = Installed((self._suffix, 0), list(self._nested.entries))
        installed.publish()
        call = self._nested.around(self.call)
        weakref.finalize(call, installed.uninstall)
        return call

    def uninstall(self) -> None:
        """Nothing of an image is shared: what it put into modules goes with ``call``."""

    # --- graphs ----------------------------------------------------------------------------

    def _graphs(self) -> list[Callable[..., Any]]:
        constants = self._constants()
        graphs = [
            make_graph(graph, self._kernels(graph), values, self._device)
            for graph, values in zip(self._image.graphs, constants, strict=True)
        ]
        if not self._hooked:
            return graphs
        from preheat.image.nested import without_hook

        return [without_hook(graph) for graph in graphs]

    def _constants(self) -> list[dict[str, torch.Tensor]]:
        records = [graph.constants for graph in self._image.graphs]
        if not any(records):
            return [{} for _ in records]
        from preheat.image.constants import read_constants

        return read_constants(self._opener, CONSTANTS_NAME, records)

    def _kernels(self, graph: Graph) -> dict[str, Any]:
        loaded = {}
        for kernel in graph.kernels:
            opening = functools.partial(self._opener.open, kernel.object)
            digest = kernel.object.rpartition("/")[2]
            if isinstance(kernel, CppKernel):
                loaded[kernel.name] = load_cpp_kernel(opening, digest, kernel.entry)
            else:
                from preheat.image.triton import load_triton_kernel

                loaded[kernel.name] = load_triton_kernel(kernel, opening, digest, self._device)
        return loaded

    # --- globals ---------------------------------------------------------------------------

    def _provide_globals(self, graphs: Sequence[Callable[..., Any]]) -> None:
        for one in self._image.globals:
            scope = self._scope(one.module)
            value = self._global_value(one, scope, graphs)
            name = self._names.get(one.name)
            if name is not None:
                self._globals.append((scope, name))
            scope[name or one.name] = value

    def _global_value(
        self, one: Global, scope: dict[str, Any], graphs: Sequence[Callable[..., Any]]
    ) -> Any:
        if one.kind == "graph":
            return graphs[one.index]
        if one.kind == "resume":
            return self._resume(self._image.units[one.index], scope)
        if one.kind == "builtins":
            found = scope["__builtins__"]
            return found if isinstance(found, dict) else vars(found)
        if one.value is None:
            raise CorruptedError(f"Global {one.name!r} has no value.")
        value = decode(one.value)
        if one.kind == "standin":
            return standin_module(value)
        return import_module(value) if one.kind == "module" else value

    def _scope(self, module: str) -> dict[str, Any]:
        if not module:
            return self._main_scope
        if module.startswith("torch._dynamo"):
            return self._foreign_scopes.setdefault(
                module, {"__builtins__": __builtins__, "__name__": module, "torch": torch}
            )
        return vars(import_module(module))

    # --- code ------------------------------------------------------------------------------

    def _target(self, fn: Any) -> Callable[..., Any]:
        unit = self._image.units[0]
        program = program_of(fn)
        if unit.role == "wrapped":
            entry = self._wrapped(unit, program)
            return self._unless_replaced(program, entry, entry, entry)
        function, owner = function_of(program)
        if code_digest(function.__code__) != unit.digest:
            raise IncompatibleError(reasons=[_other_code(function.__code__)])
        entry = self._entry(unit, function, function.__globals__)
        call: Callable[..., Any]
        if owner is None:
            call = entry
        elif isinstance(owner, torch.nn.Module) and program is owner:
            call = _module_call(owner, entry)
        else:
            call = functools.partial(entry, owner)
        return self._unless_replaced(program, function, entry, call)

    def _unless_replaced(
        self, program: Any, function: types.FunctionType, entry: Any, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A call that would reach other code by now is a miss; defaults count as they are now."""
        code, forward = function.__code__, _forward(program)
        hooks: Any = sys.modules["torch.nn.modules.module"]

        def run(*args: Any, **kwargs: Any) -> Any:
            if function.__code__ is not code or _forward(program) is not forward:
                return self._replaced(program, code, _REPLACED)(*args, **kwargs)
            if (
                hooks._global_forward_hooks
                or hooks._global_forward_pre_hooks
                or hooks._global_backward_hooks
                or hooks._global_backward_pre_hooks
            ):
                return self._replaced(program, code, _HOOKS)(*args, **kwargs)
            if entry.__defaults__ is not function.__defaults__:
                entry.__defaults__ = function.__defaults__
            if entry.__kwdefaults__ is not function.__kwdefaults__:
                entry.__kwdefaults__ = function.__kwdefaults__
            return call(*args, **kwargs)

        return run

    def _replaced(self, program: Any, code: types.CodeType, why: str) -> Callable[..., Any]:
        if self._decide(code.co_qualname, why) == "eager":
            found: Callable[..., Any] = program
            return found
        return self._plainly_compiled(program, None)

    def _plainly_compiled(
        self, program: Callable[..., Any], code: types.CodeType | None
    ) -> Callable[..., Any]:
        key = None if code is None else id(code)  # code may hold what cannot be hashed
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile_plainly(program)
        return compiled

    def _wrapped(self, unit: Unit, program: Any) -> types.FunctionType:
        """torch puts a small function of its own around programs whose code it would skip."""
        if unit.original is None:
            raise CorruptedError("The image lacks the code of its entry.")
        scope = self._scope(unit.module)
        code = decode_code(unit.original)
        function = types.FunctionType(code, scope, code.co_name, None, (types.CellType(program),))
        entry: types.FunctionType = self._entry(unit, function, scope)
        return entry

    def _resume(self, unit: Unit, scope: dict[str, Any]) -> Any:
        if unit.original is None:
            raise CorruptedError("The image lacks the code of a resume function.")
        code = renamed(decode_code(unit.original), self._names)
        name = unit.names[0] if unit.names else code.co_name
        if not code.co_freevars:
            return self._entry(unit, types.FunctionType(code, scope, name), scope)
        shared = self._variants_maker(unit, scope)

        def make(closure: tuple[types.CellType, ...]) -> Any:
            function = types.FunctionType(code, scope, name, None, closure)
            return entry_point(unit.entry, function, closure, shared(function))

        return make

    def _entry(self, unit: Unit, function: types.FunctionType, scope: dict[str, Any]) -> Any:
        if not unit.variants:
            return function
        variants = self._variants_maker(unit, scope)(function)
        return entry_point(unit.entry, function, function.__closure__ or (), variants)

    def _add_nested(self, unit: Unit) -> None:
        from preheat.image.nested import find_code

        scope = self._scope(unit.module)
        code = find_code(unit.module, unit.names, unit.source, scope)
        if code_digest(code) != unit.digest:
            raise IncompatibleError(reasons=[_other_code(code)])
        for variant in unit.variants:
            guards = self._guards(variant, scope)
            if guards is not None:
                root = guards.root
                root.add_epilogue_lambda_guard(
                    self._nested.is_current, *guard_text(["preheat: this image is being called"])
                )
                self._nested.add(
                    code, guards, root, renamed(decode_code(variant.code), self._names)
                )

    def _nested_missed(self, code: types.CodeType, why: str, frame: tuple[Any, ...]) -> Any:
        if self._decide(code.co_qualname, why or "no variant answers") == "eager":
            return None
        return self._convert_frame(*frame)

    @functools.cached_property
    def _convert_frame(self) -> Callable[..., Any]:
        from preheat.torch_internals.dispatch import frame_converter

        return frame_converter()

    def _variants_maker(
        self, unit: Unit, scope: dict[str, Any]
    ) -> Callable[[types.FunctionType], Variants]:
        """Guards are made once, functions once for each closure."""
        # Modules hold resume functions: those must not keep the image alive.
        missed = self._missed if unit is self._image.units[0] else _weakly(self._missed)
        prepared = [(self._guards(variant, scope), variant) for variant in unit.variants]
        usable = [
            (guards, renamed(decode_code(variant.code), self._names))
            for guards, variant in prepared
            if guards is not None
        ]
        if not usable and unit.variants:
            raise IncompatibleError(reasons=self._skipped)

        def variants_of(function: types.FunctionType) -> Variants:
            cells = dict(
                zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            )
            return Variants(
                [
                    GuardedVariant(guards, variant_function(code, scope, function, cells))
                    for guards, code in usable
                ],
                lambda why: missed(function, why),
            )

        return variants_of

    def _guards(self, variant: Variant, scope: dict[str, Any]) -> _CheckedGuards | None:
        helpers = {**guard_helpers(), "G": scope}
        for check in self._checks(variant.load_checks):
            if not _holds_now(check, helpers):
                self._skipped.append(_changed(check))
                return None
        guards = Guards(
            variant.guards,
            scope,
            variant.modes,
            self._image.guard_settings,
            self._names,
            self._only_gpu,
        )
        checks = (
            CallChecks(self._checks(variant.call_checks), helpers) if variant.call_checks else None
        )
        if checks is not None:
            add_call_checks(guards.root, checks)
        if self._same_weights is not None:
            text = guard_text(["preheat: frozen parameters are unchanged"])
            guards.root.add_epilogue_lambda_guard(self._same_weights, *text)
        return _CheckedGuards(guards, checks)

    def _checks(self, records: Sequence[image_format.Check]) -> tuple[Check, ...]:
        return tuple(
            Check(
                with_names(record.expression, self._names),
                record.subject,
                unmarshal(record.expected),
            )
            for record in records
        )

    def _missed(self, function: types.FunctionType, why: str) -> Callable[..., Any]:
        code = function.__code__
        if self._decide(code.co_qualname, why) == "eager":
            return function
        return self._plainly_compiled(function, code)


class _CheckedGuards:
    """torch's guards together with preheat's call-time checks."""

    def __init__(self, guards: Guards, checks: CallChecks | None) -> None:
        self.root = guards.root
        self.check = guards.check
        self._guards = guards
        self._checks = checks

    def why_not(self, local_scope: dict[str, Any]) -> str:
        failed = self._checks.failed(local_scope) if self._checks is not None else None
        if failed is not None:
            return f"{failed.expression} is not {describe(failed)}"
        return self._guards.why_not(local_scope)


def read_image(opener: ObjectOpener) -> Image:
    """The image of a package, for this interpreter and torch.

    Raises ``CorruptedError`` for anything that is no image, and ``IncompatibleError`` for another
    interpreter's or torch's.
    """
    opened = opener.open(IMAGE_NAME)
    try:
        image = image_format.decode(opened.read())
    finally:
        opened.close()
    if image.interpreter != INTERPRETER:
        raise IncompatibleError(reasons=[_differs("the interpreter's bytecode", "another", "this")])
    if image.torch != str(torch.__version__):
        raise IncompatibleError(reasons=[_differs("torch", image.torch, str(torch.__version__))])
    return image


def _differs(what: str, built: str, here: str) -> Reason:
    return Reason(
        kind="environment_differs", symbol=what, detail=f"built with {built}, here {here}"
    )


def _holds_now(check: Check, scope: dict[str, Any]) -> bool:
    try:
        return holds(check, eval(check.expression, scope, {"L": {}}))  # noqa: S307
    except Exception:
        return False


def _changed(check: Check) -> Reason:
    return Reason(
        kind="value_changed",
        symbol=check.expression,
        detail=f"was {describe(check)} when the package was built",
    )


def describe(check: Check) -> str:
    """A check's expectation for a person."""
    kind, *rest = check.expected
    if kind == "literal":
        return str(rest[1])
    return " ".join(str(part) for part in (kind, *rest[:2]) if isinstance(part, str))


def _other_code(code: types.CodeType) -> Reason:
    return Reason(
        kind="live_code_differs",
        file=code.co_filename,
        symbol=code.co_qualname,
        detail="this process imported another version than the package was built from",
    )


def program_of(fn: Any) -> Any:
    """A module, function or method as it is; a callable object's ``__call__``."""
    if isinstance(fn, torch.nn.Module) or inspect.isfunction(fn) or inspect.ismethod(fn):
        return fn
    if isinstance(fn, functools.partial):
        return calling(fn)
    call = getattr(fn, "__call__", None)  # noqa: B004  the bound method itself is wanted
    if inspect.ismethod(call):
        return call
    raise IncompatibleError(f"A {type(fn).__name__} has no Python code.")


def calling(fn: functools.partial[Any]) -> types.FunctionType:
    """A function that calls ``fn``; the build and the worker make the same one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]


def device_index(fn: Any) -> int:
    """The number of the GPU that a program is for: its parameters', else the current one; 0 without."""
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    if isinstance(module, torch.nn.Module):
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if tensor.device.type == "cuda":
                return tensor.device.index or 0
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return int(cuda.current_device())
    return 0


def function_of(program: Any) -> tuple[types.FunctionType, Any]:
    """The function whose code is the program's entry, and what it is bound to.

    Raises ``IncompatibleError`` when it has none in Python.
    """
    found: Any = program.forward if isinstance(program, torch.nn.Module) else program
    while (inner := getattr(found, "_torchdynamo_orig_callable", None)) is not None:
        found = inner
    owner = found.__self__ if inspect.ismethod(found) else None
    function = getattr(found, "__func__", found)
    if not isinstance(function, types.FunctionType):
        raise IncompatibleError(f"{program!r} has no Python code.")
    return function, owner


def _globals_of(fn: Any) -> dict[str, Any]:
    """The globals of the target's own code: they may belong to no module."""
    try:
        function, _ = function_of(program_of(fn))
    except IncompatibleError:
        return {}
    return function.__globals__


_REPLACED = "its code was replaced after the package was loaded"
_HOOKS = "hooks of all modules are installed in this process"


def _forward(program: Any) -> Any:
    """What a call of a module reaches; None for anything else."""
    if not isinstance(program, torch.nn.Module):
        return None
    return getattr(program.forward, "__func__", program.forward)


def _module_call(module: torch.nn.Module, entry: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call: its hooks run as Python runs them, around the compiled forward."""
    own = vars(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return hooked(*args, **kwargs)
        return entry(module, *args, **kwargs)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        kind: Any = type(module)
        forward = {"forward": lambda _, *a, **k: entry(module, *a, **k)}
        stand_in: Any = kind.__new__(type(kind.__name__, (kind,), forward))
        object.__setattr__(stand_in, "__dict__", own)
        return stand_in._call_impl(*args, **kwargs)

    return call


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = reference()
        assert bound is not None, "a loaded image went away during a call"
        return bound(*args)

    return call


def _remove(names: list[tuple[dict[str, Any], str]]) -> None:
    for scope, name in names:
        scope.pop(name, None)
