"""The compiler's configuration where user code changed it, in a form that two processes can compare.

Reads torch's ``ConfigModule``: ``_config`` (name -> entry with ``default``, ``user_override``,
``env_value_default``, ``env_value_force`` and ``alias``). Values that come from environment variables
are left out: the environment records those, and a worker that never imports the compiler cannot see
them here.
"""

from __future__ import annotations

import functools
import re
import sys
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from preheat.sources.digest import code_digest

_MODULES = (
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch.fx.experimental._config",
)

OPAQUE = "opaque "

# Caches, logs, dumps, processes and time limits; names as in the configuration modules.
_HARMLESS = r"""
    _(save|cache)_config\w*
    | \w*(_dir|_log_path|_logpath|log_file_name|_timeout|_timeout_seconds|time_instruction_count)
    | (fx_graph|autotune_local|bundled_autotune|remote_gemm_autotune|fx_graph_remote)\w*cache
    | \w*_remote_cache\w* | \w*autograd_cache\w* | bundle_triton_into_fx_graph_cache
    | force_disable_caches | search_autotune_cache | cpp_cache_precompile_headers
    | fake_tensor_cache\w* | automatic_dynamic_(local|remote)_pgo
    | compile_threads | worker_\w+ | quiesce_\w+ | torchinductor_worker_logpath
    | debug | verbose | verbose_progress | disable_progress | debug_dir_root | base_dir
    | debug_partitioner | debug_fusion | debug_ir_traceback | debug_disable_compile_counter
    | cprofile | dynamo_profiler | log_\w+ | print_\w+ | report_guard_failures | repro_\w+
    | record_runtime_overhead | max_autotune_report_choices_stats | enabled_metric_tables
    | save_args | trace\.\w+ | force_disable_cudagraph_TESTING_ONLY
    | \w+\.(log_\w+|save_temps|\w+_dir|\w*binary_remote_cache\w*|print_\w+|repro_level)
    """


@functools.cache
def _harmless() -> re.Pattern[str]:
    # Compiled when a setting was changed: most workers change none.
    return re.compile(_HARMLESS, re.VERBOSE)


def changed_configuration() -> dict[str, str]:
    """What user code set to another value than the process started with: full name -> text.

    Looks only at configuration modules that are already imported; imports nothing. A value that has
    no text that means the same in another process becomes ``opaque`` and its type's name: see
    ``is_opaque``. Configuration is per thread in newer torch releases: call it where the target runs.
    """
    changed: dict[str, str] = {}
    for name in _MODULES:
        module = sys.modules.get(name)
        entries = getattr(module, "_config", None)
        if not isinstance(entries, dict):
            continue
        ignored = getattr(module, "_compile_ignored_keys", ())
        for key, entry in entries.items():
            if key in ignored or not _is_changed(entry) or _harmless().fullmatch(key):
                continue
            changed[f"{name}.{key}"] = text_of(_override(entry))
    return changed


def is_opaque(text: str) -> bool:
    """Whether a value could not be represented, so that no comparison can be trusted."""
    return OPAQUE in text


def text_of(value: object, depth: int = 8) -> str:
    """A value as text that is equal exactly when the values mean the same, or an opaque mark.

    Passes with ``uuid()`` are named by it, functions without a closure by name and code digest.
    """
    if depth == 0:
        return _opaque(value)
    inner = functools.partial(text_of, depth=depth - 1)
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    if isinstance(value, (list, tuple)) and type(value).__module__ == "builtins":
        return f"{type(value).__name__}({', '.join(map(inner, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(inner, value)))})"
    if isinstance(value, dict):
        # Order is kept: the compiler may walk the mapping.
        pairs = (f"{inner(key)}: {inner(item)}" for key, item in value.items())
        return f"dict({', '.join(pairs)})"
    return _object_text(value)


def _object_text(value: Any) -> str:
    import torch

    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, FunctionType):
        if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
            return _opaque(value)
        return f"function {value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    return _by_uuid(value)


def _by_uuid(value: Any) -> str:
    identify = getattr(value, "uuid", None)
    if callable(identify):
        try:
            identity = identify()
        except Exception:  # a pass of the user's; without an answer it is opaque
            identity = None
        if isinstance(identity, (str, bytes, int, tuple)):
            return (
                f"uuid {type(value).__module__}.{type(value).__qualname__} {text_of(identity, 4)}"
            )
    return _opaque(value)


def _opaque(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    module, name = getattr(named, "__module__", "?"), getattr(named, "__qualname__", "?")
    return f"{OPAQUE}{module}.{name}"


def _is_changed(entry: Any) -> bool:
    override = _override(entry)
    if entry.alias is not None or override is _unset() or entry.env_value_force is not _unset():
        return False
    start = entry.default if entry.env_value_default is _unset() else entry.env_value_default
    return not _same(override, start)


def _same(first: object, second: object) -> bool:
    """Equality that tells True from 1 and survives values whose ``==`` is not a bool."""
    return first is second or (type(first) is type(second) and text_of(first) == text_of(second))


def _override(entry: Any) -> Any:
    held = entry.user_override
    return held.get() if isinstance(held, ContextVar) else held


@functools.cache
def _unset() -> object:
    from torch.utils import _config_module

    return _config_module._UNSET_SENTINEL
