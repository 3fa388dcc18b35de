"""Guards: what torch cannot save is recorded when a frame is compiled, and checked again later.

torch drops guards on identity (functions, classes, modules, closures) when it saves a package, which
lets a package made for one activation function run with another. Here each dropped guard becomes a
``Check``. A guard that cannot be expressed as a check refuses the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import sysconfig
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from preheat.torch_internals.fingerprints import fingerprint, literal
from preheat.torch_internals.patching import replaced
from preheat.torch_internals.payload import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@dataclasses.dataclass
class FrameGuards:
    """What the guards of one compiled frame leave to preheat."""

    call_checks: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    load_checks: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    recorded_values: dict[tuple[str, str], Check] = dataclasses.field(default_factory=dict)
    refusals: list[str] = dataclasses.field(default_factory=list)


class GuardRecorder:
    """A guard filter for ``torch._dynamo.optimize`` that remembers what it drops.

    ``take()`` hands over what was recorded since the last call: the guards of one frame.
    """

    def __init__(self) -> None:
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
                add_call_checks(builder.guard_manager, CallChecks(replaced, builder.scope["G"]))
            return original_compile(checks, builder, *args, **kwargs)

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
        unportable = self._passes_unportable_function(guard.originating_source)
        identity = bool(kinds & IDENTITY_GUARDS)
        if entry.guard_type == "BUILTIN_MATCH" and self._when(guard) == "load":
            # torch looks builtins up again by itself; whether they are the same is checked once.
            self._add("load", expression, "value", fingerprint(entry.value), entry)
            return True
        local_class = entry.guard_type == "TYPE_MATCH" and getattr(guard, "_unserializable", False)
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

    def _passes_unportable_function(self, source: Any) -> bool:
        base = getattr(source, "base", None)
        while base is not None:
            with contextlib.suppress(Exception):
                if is_unportable_function(evaluate_source(self._builder, base)):
                    return True
            base = getattr(base, "base", None)
        return False

    def _when(self, guard: Any) -> str:
        """``load`` for a name inside of a library, which nobody rebinds; ``call`` for all others."""
        root = guard.originating_source
        while getattr(root, "base", None) is not None:
            root = root.base
        name = getattr(root, "global_name", None)
        if name is None:
            return "call"
        if name.startswith("__builtins_dict__"):
            return "load"
        scope = self._builder.scope["G"]
        value = scope.get(name)
        if name.startswith(("__import_", "___module")) and isinstance(value, types.ModuleType):
            return "load" if is_library(value.__name__) else "call"
        return "load" if is_library(scope.get("__name__", "")) else "call"


def _reduce_by_arguments(source: Any) -> tuple[type, tuple[Any, ...]]:
    """Pickle a guard source by its constructor's arguments.

    torch 2.11 pickles fields as well that its constructor does not take, and fails to load them.
    """
    taken = [field.name for field in dataclasses.fields(source) if field.init]
    return type(source), tuple(getattr(source, name) for name in taken)


def evaluate_source(builder: Any, source: Any) -> Any:
    """The value of a guard source in the frame that is being compiled."""
    return evaluate(source_name(source), builder.scope["L"], builder.scope["G"])


def source_name(source: Any) -> str:
    """A source's expression: a property in torch 2.11 and later, a method before."""
    name: Any = source.name
    text: str = name() if callable(name) else name
    return text


def evaluate(expression: str, local_scope: Any, global_scope: Any) -> Any:
    """The value of a guard expression."""
    return eval(expression, {**_helpers(), "L": local_scope, "G": global_scope})  # noqa: S307


def _helpers() -> dict[str, Any]:
    from torch._dynamo import guards as torch_guards

    helpers: dict[str, Any] = torch_guards._get_closure_vars()
    return helpers


def is_unportable_function(value: object) -> bool:
    """Whether a module-level function's name leads to something else (its decorated form)."""
    if not inspect.isfunction(value) or "<locals>" in value.__qualname__:
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not value


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


class CallChecks:
    """All call-time checks of one variant, as one guard function.

    The first call compares fingerprints; later calls only compare identity with what was accepted
    before, as torch does in one process. Values are kept alive so that identity stays meaningful.
    """

    def __init__(self, checks: Sequence[Check], global_scope: dict[str, Any]) -> None:
        self._global_scope = {**_helpers(), "G": global_scope}
        self._checks = [
            (check, compile(check.expression, "<preheat guard>", "eval"), _Accepted())
            for check in checks
        ]

    def __call__(self, local_scope: Any) -> bool:
        return self.failed(local_scope) is None

    def text(self) -> str:
        """For torch's guard logs."""
        return "preheat: " + ", ".join(check.expression for check, _, _ in self._checks[:4])

    def failed(self, local_scope: Any) -> Check | None:
        """The first check that does not hold."""
        scope = {"L": local_scope}
        for check, code, accepted in self._checks:
            try:
                value = eval(code, self._global_scope, scope)  # noqa: S307  recorded in the build
            except Exception:
                return check
            if accepted.holds(value):
                continue
            if not holds(check, value):
                return check
            accepted.add(value)
        return None


def add_call_checks(manager: Any, checks: CallChecks) -> None:
    """Let a guard manager also ask ``checks``, after all of its own guards."""
    manager.root.add_epilogue_lambda_guard(checks, [checks.text()], None)


class _Accepted:
    """Values that passed a check, by identity; a few at most."""

    __slots__ = ("_values",)
    _LIMIT = 8

    def __init__(self) -> None:
        self._values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        return any(value is known for known in self._values)

    def add(self, value: Any) -> None:
        # Small numbers and strings are compared again: they are not worth keeping alive, and
        # a mutable value must be compared each time.
        if isinstance(value, (types.FunctionType, types.MethodType, types.CodeType)):
            return self._remember(value)
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return self._remember(value)
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            return self._remember(value)
        return None

    def _remember(self, value: Any) -> None:
        self._values = (*self._values[-self._LIMIT + 1 :], value)


def holds(check: Check, value: Any) -> bool:
    """Whether a value is what the build saw."""
    if check.subject == "type":
        return fingerprint(type(value)) == check.expected
    if check.subject == "length":
        return ("length", type(value).__qualname__, len(value)) == check.expected
    if check.subject == "keys":
        return literal(list(value)) == check.expected
    return fingerprint(value) == check.expected
