"""Guards: what torch cannot save is recorded when a frame is compiled, and checked again later.

torch drops guards on identity (functions, classes, modules, closures) when it saves a package, which
lets a package made for one activation function run with another. Here each dropped guard becomes a
``Check``. A guard that cannot be expressed as a check refuses the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
import sysconfig
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as torch_pytree

from preheat.image.call_checks import CallChecks, Check, add_call_checks
from preheat.image.fingerprints import fingerprint, literal
from preheat.image.values import import_object
from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preheat.torch_internals.guard_tree import GuardTree, GuardTreeRecorder

IDENTITY_GUARDS = frozenset(
    {
        "CLASS_MATCH",
        "CLOSURE_MATCH",
        "DICT_VERSION",
        "FUNCTION_MATCH",
        "ID_MATCH",
        "MODULE_MATCH",
        "NN_MODULE",
        "WEAKREF_ALIVE",
    }
)
VALUE_GUARDS = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH"})

# A name that Dynamo makes of an identity and a compilation alone: for torch itself, it is.
_UNNAMED_GLOBAL = re.compile(r"_\d+_c\d+")


@dataclasses.dataclass
class FrameGuards:
    """What the guards of one compiled frame leave to preheat."""

    call_checks: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    load_checks: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    recorded_values: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    installed_globals: dict[str, str] = dataclasses.field(default_factory=dict)
    refusals: list[str] = dataclasses.field(default_factory=list)
    tree: GuardTree | None = None


class GuardRecorder:
    """A guard filter for ``torch._dynamo.optimize`` that remembers what it drops.

    ``take()`` hands over what was recorded since the last call: the guards of one frame.
    """

    def __init__(self, trees: GuardTreeRecorder | None = None, program: Any = None) -> None:
        self._trees = trees
        self._program = program
        self._frame = FrameGuards()
        self._builder: Any = None

    def take(self) -> FrameGuards:
        """What the last frame's guards left to check; starts anew."""
        frame, self._frame = self._frame, FrameGuards()
        return frame

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Learn which guard builder each filter call belongs to, and replace what is dropped.

        Without the replacement, one example's graph would answer for the next in the build itself.
        """
        from torch._dynamo import guards as torch_guards
        from torch._dynamo.source import DefaultsSource

        original = torch_guards.make_guard_filter_entry
        manager = torch_guards.CheckFunctionManager
        original_compile = manager.compile_check_fn

        def remember(guard: Any, builder: Any) -> Any:
            self._builder = builder
            return original(guard, builder)

        def compile_with_checks(checks: Any, builder: Any, *args: Any, **kwargs: Any) -> Any:
            replaced = tuple(self._frame.call_checks.values())
            if replaced:
                scope = {**guard_helpers(), "G": builder.scope["G"]}
                add_call_checks(builder.guard_manager.root, CallChecks(replaced, scope))
            result = original_compile(checks, builder, *args, **kwargs)
            if self._trees is not None:
                self._frame.tree = self._trees.tree_of(builder.guard_manager.root)
            return result

        with (
            replaced(torch_guards, "make_guard_filter_entry", remember),
            replaced(manager, "compile_check_fn", compile_with_checks),
            replaced(DefaultsSource, "__reduce__", _reduce_by_arguments),
        ):
            yield

    def __call__(self, entries: Sequence[Any]) -> list[bool]:
        # torch may ask several times for one frame; the last answer is about the final guards.
        self._frame = FrameGuards()
        return [self._keep(entry) for entry in entries]

    def _keep(self, entry: Any) -> bool:
        guard = entry.orig_guard
        kinds = {entry.guard_type, *entry.derived_guard_types}
        expression = guard.name
        if not expression or not entry.has_value:
            # Guards about the absence of something, or about global state: torch saves them.
            return True
        if "___from_numpy(" in expression:
            # Made anew each time it is asked for: torch compares what a weak reference leads to.
            guard.obj_weakref = None
        if entry.value is torch_pytree.SUPPORTED_NODES:
            # A worker knows other types; those of the arguments have guards of their own.
            return False
        if self._is_about_namedtuple_internals(guard):
            return False
        self._note_installed_global(guard)
        unportable = self._passes_unportable(guard.originating_source)
        identity = bool(kinds & IDENTITY_GUARDS)
        if entry.guard_type == "BUILTIN_MATCH" and self._when(guard) == "load":
            # torch looks builtins up again by itself; whether they are the same is checked once.
            self._add("load", expression, "value", fingerprint(entry.value), entry)
            return True
        local_class = entry.guard_type == "TYPE_MATCH" and (
            getattr(guard, "_unserializable", False) or is_unportable_class(type(entry.value))
        )
        if identity and self._is_frozen(entry.value):
            # An image has a digest of each, and looks at each call whether it is the same still.
            return False
        if identity:
            self._add(self._when(guard), expression, "value", fingerprint(entry.value), entry)
            return False
        if local_class or (unportable and entry.guard_type == "TYPE_MATCH"):
            self._add(self._when(guard), expression, "type", fingerprint(type(entry.value)), entry)
            return False
        if unportable:
            return self._replace_under_function(entry, expression)
        if kinds & VALUE_GUARDS and (found := literal(entry.value)) is not None:
            self._frame.recorded_values[expression, "value"] = Check(expression, "value", found)
        return True

    def _is_frozen(self, value: object) -> bool:
        """Whether this is a parameter or buffer of the program that becomes a part of compiled code."""
        if not freezing() or not isinstance(self._program, torch.nn.Module):
            return False
        tensors = (*self._program.parameters(), *self._program.buffers())
        return any(value is one for one in tensors)

    def _replace_under_function(self, entry: Any, expression: str) -> bool:
        """Guards on what a function holds that cannot be found by its name (a decorator's wrapper)."""
        when = self._when(entry.orig_guard)
        if entry.guard_type in VALUE_GUARDS:
            self._add(when, expression, "value", fingerprint(entry.value), entry)
        elif entry.guard_type in ("SEQUENCE_LENGTH", "TUPLE_MATCH", "LIST_LENGTH"):
            length = ("length", type(entry.value).__qualname__, len(entry.value))
            self._add(when, expression, "length", length, entry)
        elif entry.guard_type in ("DICT_KEYS_MATCH", "DICT_KEYS"):
            self._add(when, expression, "keys", literal(list(entry.value)), entry)
        elif entry.guard_type == "EMPTY_NN_MODULE_HOOKS_DICT":
            length = ("length", type(entry.value).__qualname__, len(entry.value))
            self._add(when, expression, "length", length, entry)
        elif entry.guard_type == "DUPLICATE_INPUT":
            pass  # both names are checked by themselves
        else:
            self._refuse(entry, "is inside a function that cannot be found by its name")
        return False

    def _add(self, when: str, expression: str, subject: str, expected: Any, entry: Any) -> None:
        if expected is None:
            self._refuse(entry, f"is about a {type(entry.value).__name__}, known only by identity")
            return
        checks = self._frame.call_checks if when == "call" else self._frame.load_checks
        checks[expression, subject] = Check(expression, subject, expected)

    def _refuse(self, entry: Any, why: str) -> None:
        self._frame.refusals.append(f"{entry.guard_type} guard on {entry.orig_guard.name} {why}")

    def _passes_unportable(self, source: Any) -> bool:
        base = getattr(source, "base", None)
        while base is not None:
            with contextlib.suppress(Exception):
                value = evaluate_source(self._builder, base)
                if is_unportable_function(value) or is_unportable_class(value):
                    return True
            base = getattr(base, "base", None)
        return False

    def _is_about_namedtuple_internals(self, guard: Any) -> bool:
        """What the methods that ``collections.namedtuple`` generates look up: nobody can change it."""
        name = root_global(guard) or ""
        scope = self._builder.scope["G"].get(name)
        return (
            name.startswith("___unnamed_scope")
            and isinstance(scope, dict)
            and str(scope.get("__name__")).startswith("namedtuple_")
        )

    def _note_installed_global(self, guard: Any) -> None:
        """What Dynamo itself made a global of the program's module, by where it is."""
        name = root_global(guard) or ""
        found = self._builder.scope["G"].get(name)
        if _UNNAMED_GLOBAL.fullmatch(name) and isinstance(found, types.ModuleType):
            self._frame.installed_globals[name] = found.__name__
        if name.startswith("__subclass_") and isinstance(found, type):
            path = f"{found.__module__}:{found.__qualname__}"
            if _object(path) is found:
                self._frame.installed_globals[name] = path
            else:
                self._frame.refusals.append(f"the tensor class {path} cannot be found by its name")

    def _when(self, guard: Any) -> str:
        """``load`` for a name inside of a library, which nobody rebinds; ``call`` for all others."""
        name = root_global(guard)
        if name is None:
            return "call"
        if name.startswith("__builtins_dict__"):
            return "load"
        scope = self._builder.scope["G"]
        value = scope.get(name)
        if name.startswith(("__import_", "___module")) and isinstance(value, types.ModuleType):
            return "load" if is_library(value.__name__) else "call"
        return "load" if is_library(scope.get("__name__", "")) else "call"


def freezing() -> bool:
    """Whether Inductor makes constants of parameters in this process."""
    import torch._inductor.config as inductor_config

    return bool(inductor_config.freezing)


def _reduce_by_arguments(source: Any) -> tuple[type, tuple[Any, ...]]:
    """Pickle a guard source by its constructor's arguments.

    torch 2.11 pickles fields as well that its constructor does not take, and fails to load them.
    """
    taken = [field.name for field in dataclasses.fields(source) if field.init]
    return type(source), tuple(getattr(source, name) for name in taken)


def evaluate_source(builder: Any, source: Any) -> Any:
    """The value of a guard source in the frame that is being compiled."""
    return evaluate(source_name(source), builder.scope["L"], builder.scope["G"])


def root_global(guard: Any) -> str | None:
    """The global name that a guard's expression begins with."""
    root = guard.originating_source
    while getattr(root, "base", None) is not None:
        root = root.base
    name: str | None = getattr(root, "global_name", None)
    return name


def source_name(source: Any) -> str:
    """A source's expression: a property in torch 2.11 and later, a method before."""
    name: Any = source.name
    text: str = name() if callable(name) else name
    return text


def evaluate(expression: str, local_scope: Any, global_scope: Any) -> Any:
    """The value of a guard expression."""
    return eval(expression, {**guard_helpers(), "L": local_scope, "G": global_scope})  # noqa: S307


def guard_helpers() -> dict[str, Any]:
    """Names in torch's guard expressions, besides ``L`` and ``G``."""
    from torch._dynamo import guards as torch_guards

    helpers: dict[str, Any] = torch_guards._get_closure_vars()
    return helpers


def is_unportable_function(value: object) -> bool:
    """Whether a module-level function's name leads to something else (its decorated form)."""
    return inspect.isfunction(value) and _is_elsewhere(value)


def is_unportable_class(value: object) -> bool:
    """Whether a class was made while the program ran, as those of parametrized modules are."""
    return isinstance(value, type) and _is_elsewhere(value)


def _is_elsewhere(value: Any) -> bool:
    """Whether the name of something that claims to be a module's leads to something else."""
    if "<locals>" in value.__qualname__:
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not value


def _object(path: str) -> object:
    try:
        return import_object(path)
    except (ImportError, AttributeError):
        return None


def is_library(module_name: str) -> bool:
    """Whether a module belongs to an installed library or to Python, by where its file lies."""
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if file is None:
        return module_name in sys.builtin_module_names
    path = Path(file)
    return any(path.is_relative_to(root) for root in _library_roots())


def _library_roots() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [path for name in names if (path := sysconfig.get_path(name))]
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if torch_file:
        roots.append(str(Path(torch_file).parent))
    return roots
