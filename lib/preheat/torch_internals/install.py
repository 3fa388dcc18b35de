"""Worker side: put the dynamo form's variants in place, and take them away again.

torch's ``CompilePackage.install`` wipes what others installed on the same code, marks code without
variants as skipped for the whole process, and installs a function before what it calls. This does
none of that.
"""

from __future__ import annotations

import pickle
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.package import SerializedCode, load_guard_manager, load_guards_state

from preheat.errors import IncompatibleError
from preheat.image.call_checks import CallChecks, add_call_checks, holds
from preheat.image.checking import describe
from preheat.image.modes import entered
from preheat.image.nested import find_code
from preheat.image.values import import_module, import_object, other_code
from preheat.kinds.interface import Place
from preheat.kinds.registry import find as find_kind
from preheat.sources.digest import code_digest
from preheat.torch_internals.constants import live
from preheat.torch_internals.guard_states import loading_guards
from preheat.torch_internals.guards import evaluate, guard_helpers
from preheat.torch_internals.installed import Installed, find, lock
from preheat.torch_internals.payload import OF_NO_MODULE
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from preheat.image.call_checks import Check
    from preheat.torch_internals.payload import CodeRecord, Payload, StoredCode, Variant

_call_checks: weakref.WeakKeyDictionary[Any, CallChecks] = weakref.WeakKeyDictionary()


def install(
    digest: str,
    payload: Payload,
    main: types.FunctionType,
    answering: Callable[[], AbstractContextManager[None]],
    device: int = 0,
) -> Installed:
    """Install every variant for ``main``, the live entry function.

    ``digest`` names the payload: one that is installed on the same code already is shared.
    ``answering()`` is a context that is entered while compiled graphs are restored, so that their
    kernels come from the package. ``device`` is the number of the GPU that the program is on.

    Raises ``IncompatibleError`` when the live code is not the code that was built; then nothing is
    installed. Nested and resume functions come before what calls them, so that a call in another
    thread never meets a missing name.
    """
    with lock:
        key = (digest, id(main.__code__))
        if (shared := find(key)) is not None:
            return shared
        installed = Installed(key)
        prepared = [
            (record, *_code_of(record, main, index == 0, installed))
            for index, record in enumerate(payload.codes)
        ]
        known = {code: code for _, code, _ in prepared}
        with answering():
            for record, code, scope in [*prepared[1:], prepared[0]]:
                for variant in record.variants:
                    _restore(payload, variant, code, scope, known, installed, device)
        if not installed.entries:
            raise IncompatibleError(reasons=installed.skipped_variants)
        installed.publish()
        return installed


def _code_of(
    record: CodeRecord, main: types.FunctionType, is_main: bool, installed: Installed
) -> tuple[types.CodeType, dict[str, Any]]:
    """Find or make the code object of a record, and the globals that it runs in."""
    has_own_globals = is_main or record.module == OF_NO_MODULE
    scope = main.__globals__ if has_own_globals else vars(import_module(record.module))
    for alias, name in record.imports:
        provide(alias, import_object(name), scope, installed)
    if record.resume:
        code = SerializedCode.to_code_object(live(record.code, import_module))
        for name in record.names:
            installed.resumes.append((scope, name, _resume_function(code, scope, name)))
    else:
        code = (
            main.__code__
            if is_main
            else find_code(record.module, record.names, record.source or "", scope)
        )
        if code_digest(code) != record.digest:
            raise IncompatibleError(reasons=[other_code(code)])
    if not record.variants:
        installed.left_to_python.add(code)
    return code, scope


def provide(name: str, value: object, scope: dict[str, Any], installed: Installed) -> None:
    """Set a global that compiled bytecode looks up. Its name has a number of the build process in it.

    Raises ``IncompatibleError`` where another package uses the name for something else.
    """
    if scope.get(name, value) is not value:
        reason = Reason(
            kind="name_taken",
            symbol=f"{scope.get('__name__')}.{name}",
            detail="another package in this process gave it another meaning",
        )
        raise IncompatibleError(reasons=[reason])
    installed.set_global(scope, name, value)


def _resume_function(code: types.CodeType, scope: dict[str, Any], name: str) -> Any:
    """What compiled bytecode calls to go on after a graph break."""
    if not code.co_freevars:
        return types.FunctionType(code, scope, name)

    def make(closure: tuple[types.CellType, ...]) -> types.FunctionType:
        return types.FunctionType(code, scope, name, None, closure)

    # Its frame holds cells with tensors, and would be taken for one of the program's own.
    skip_code(make.__code__)
    return make


def _restore(
    payload: Payload,
    variant: Variant,
    code: types.CodeType,
    scope: dict[str, Any],
    known: Mapping[types.CodeType, types.CodeType],
    installed: Installed,
    device: int,
) -> None:
    """Restore one variant's graphs and guards, under the modes it was compiled in.

    ``known``: code objects that have variants. A function that compiled bytecode makes must be made of
    those very objects, and not of others that are equal.
    """
    with entered(variant.modes):
        state = _guards_state(variant.guards)
        _provide_builtins(state.output_graph, scope)
        if (reason := _changed_value(variant, state.output_graph, scope, code)) is not None:
            installed.skipped_variants.append(reason)
            return
        for name in variant.backends:
            if not installed.has_global(scope, name):
                restored = _restore_backend(payload, payload.backends[name], device, installed)
                installed.set_global(scope, name, restored)
        # torch leaves out guards on hooks by default.
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
            manager = load_guard_manager(state, code, scope)
        if variant.call_checks:
            checks = CallChecks(variant.call_checks, {**guard_helpers(), "G": scope})
            _call_checks[manager] = checks
            add_call_checks(manager.root, checks)
    compiled = SerializedCode.to_code_object(live(variant.code, import_module))
    compiled = compiled.replace(
        co_consts=tuple(
            known.get(constant, constant) if isinstance(constant, types.CodeType) else constant
            for constant in compiled.co_consts
        )
    )
    installed.add(code, manager, compiled)


def _guards_state(pickled: bytes) -> Any:
    with loading_guards():
        # torch's own loader imports all of FSDP, to be safe with modules that only exist where the
        # program has imported it.
        if "torch.distributed.fsdp" in sys.modules:
            return load_guards_state(pickled)
        return pickle.loads(pickled)  # noqa: S301  verified bytes of a trusted store


def _restore_backend(
    payload: Payload, stored: StoredCode, device: int, installed: Installed
) -> Any:
    code = find_kind(stored.kind).load(stored.data, Place(payload.options, device))
    code.post_load()
    installed.codes.append(code)
    return torch._dynamo.disable(code.__call__)


def _provide_builtins(output_graph: Any, scope: dict[str, Any]) -> None:
    from torch._dynamo.output_graph import get_builtins_dict

    name = output_graph.name_of_builtins_dict_key_in_fglobals
    if name:
        scope[name] = get_builtins_dict(scope)


def _changed_value(
    variant: Variant, output_graph: Any, scope: dict[str, Any], code: types.CodeType
) -> Reason | None:
    """A recorded value that is another one now: torch would compare the new value with itself."""
    places: tuple[tuple[Sequence[Check], Any, Any], ...] = (
        (variant.recorded_values, output_graph.local_scope, output_graph.global_scope),
        (variant.load_checks, {}, scope),
    )
    for checks, local_scope, global_scope in places:
        for check in checks:
            if not _still_holds(check, local_scope, global_scope, scope):
                return Reason(
                    kind="value_changed",
                    file=code.co_filename,
                    symbol=check.expression,
                    detail=f"was {describe(check)} when the package was built",
                )
    return None


def _still_holds(check: Check, local_scope: Any, global_scope: Any, scope: dict[str, Any]) -> bool:
    try:
        return holds(check, evaluate(check.expression, local_scope, {**scope, **global_scope}))
    except Exception:
        return False


def check_that_failed(manager: Any, local_scope: Any) -> str | None:
    """Which call-time check of a loaded variant does not hold for a frame, in words."""
    checks = _call_checks.get(manager)
    failed = checks.failed(local_scope) if checks is not None else None
    return f"{failed.expression} is not {describe(failed)}" if failed is not None else None
