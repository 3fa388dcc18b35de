"""A lean image as a callable: everything that a worker does with one."""

from __future__ import annotations

import functools
import itertools
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError, IncompatibleError
from preheat.image.call_checks import guard_text
from preheat.image.checking import GuardMaker
from preheat.image.codes import (
    GuardedVariant,
    LibraryGuards,
    Variants,
    entry_point,
    renamed,
    variant_function,
)
from preheat.image.format import CppKernel
from preheat.image.graphs import load_graphs
from preheat.image.operators import spare_the_compiler
from preheat.image.programs import (
    device_index,
    forward_of,
    function_of,
    globals_of,
    module_call,
    program_of,
)
from preheat.image.standins import module as standin_module
from preheat.image.values import decode, decode_code, import_module, on_device, other_code
from preheat.sources.digest import code_digest
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preheat.image.format import Global, Image, Unit
    from preheat.image.library import LoadedLibrary
    from preheat.image.nested import NestedFrames
    from preheat.store.protocol import ObjectOpener

_numbers = itertools.count()

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
        self._compiled: dict[int | None, Callable[..., Any]] = {}
        self._device = device_index(fn)
        self._main_scope = globals_of(fn)
        self._guards = GuardMaker(
            image, self._names, not _has_cpp_kernels(image), self._compared_weights(fn)
        )
        spare_the_compiler()
        self._hooked = any(unit.role == "nested" and unit.variants for unit in image.units)
        try:
            with on_device(self._device):
                self._library = self._loaded_library(fn)
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

    def _loaded_library(self, fn: Any) -> LoadedLibrary | None:
        if not self._image.library:
            return None
        from preheat.kinds.aoti import AotiKind
        from preheat.kinds.interface import Place

        place = Place(device=self._device, opener=self._opener, program=fn)
        code = AotiKind().load(self._image.library, place)
        code.post_load()
        return code.library

    def _compared_weights(self, fn: Any) -> Callable[[Any], bool] | None:
        if not self._image.weights:
            return None
        from preheat.image.weights import SameWeights

        return SameWeights(fn, self._image.weights)

    def _put_together(self, fn: Any) -> Callable[..., Any]:
        self._provide_globals(load_graphs(self._image, self._opener, self._device, self._hooked))
        self.call = self._target(fn)
        return self._with_nested_frames() if self._hooked else self.call

    def _with_nested_frames(self) -> Callable[..., Any]:
        for unit in self._image.units:
            if unit.role == "nested" and unit.variants:
                self._add_nested(unit)
        self._nested.publish()
        return self._nested.around(self.call)

    def uninstall(self) -> None:
        """Nothing of an image is shared: what it put into modules goes with ``call``."""
        if self._library is not None:
            self._library.release()

    # --- globals ---------------------------------------------------------------------------

    def _provide_globals(self, graphs: Sequence[Callable[..., Any]]) -> None:
        # The guards of a resume function look at the other names as soon as they are made.
        for one in sorted(self._image.globals, key=lambda one: one.kind == "resume"):
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
            raise IncompatibleError(reasons=[other_code(function.__code__)])
        entry = self._entry(unit, function, function.__globals__)
        call: Callable[..., Any]
        if owner is None:
            call = entry
        elif isinstance(owner, torch.nn.Module) and program is owner:
            call = module_call(owner, entry)
        else:
            call = functools.partial(entry, owner)
        return self._unless_replaced(program, function, entry, call)

    def _unless_replaced(
        self, program: Any, function: types.FunctionType, entry: Any, call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A call that would reach other code by now is a miss; defaults count as they are now."""
        code, forward = function.__code__, forward_of(program)
        hooks: Any = sys.modules["torch.nn.modules.module"]

        def run(*args: Any, **kwargs: Any) -> Any:
            if function.__code__ is not code or forward_of(program) is not forward:
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
            raise IncompatibleError(reasons=[other_code(code)])
        for variant in unit.variants:
            guards = self._guards.make(variant, scope)
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
        prepared = [(self._guards.make(variant, scope), variant) for variant in unit.variants]
        usable = [
            (guards, renamed(decode_code(variant.code), self._names))
            for guards, variant in prepared
            if guards is not None
        ]
        if not usable and unit.variants:
            raise IncompatibleError(reasons=self._guards.skipped)

        library = self._library  # not by way of the image, for the same reason

        def variants_of(function: types.FunctionType) -> Variants:
            if library is not None:
                return Variants(
                    [GuardedVariant(LibraryGuards(one, library), library.run) for one, _ in usable],
                    lambda why: missed(function, why),
                )
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

    def _missed(self, function: types.FunctionType, why: str) -> Callable[..., Any]:
        code = function.__code__
        if self._decide(code.co_qualname, why) == "eager":
            return function
        return self._plainly_compiled(function, code)


_REPLACED = "its code was replaced after the package was loaded"
_HOOKS = "hooks of all modules are installed in this process"


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


def _has_cpp_kernels(image: Image) -> bool:
    if image.library:
        return True  # its own kernels may be among them
    return any(isinstance(kernel, CppKernel) for graph in image.graphs for kernel in graph.kernels)
