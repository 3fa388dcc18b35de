"""Which environment variables change what the compiler makes.

An allow-list, so that no secret gets into a manifest: a variable counts when its name is listed or
begins with a listed prefix, unless it is known not to change code. A new variable of torch's is thus
counted until it is listed as harmless: at worst a package is built once more.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = (
    "AOTINDUCTOR_",
    "AOTI_",
    "AOT_INDUCTOR_",
    "AOT_PARTITIONER_",
    "INDUCTOR_",
    "PARTITIONER_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_COMPILE_",
    "TORCH_DYNAMO_",
    "TORCH_INDUCTOR_",
)

_NAMES = frozenset(
    {
        # Which C++ compiler makes CPU kernels, and which instructions it may use.
        "ATEN_CPU_CAPABILITY",
        "CC",
        "CXX",
        # How many threads generated code is split for.
        "MKL_NUM_THREADS",
        "OMP_NUM_THREADS",
        # Which formats and precision the CPU libraries choose; prepacked weights follow them.
        "DNNL_DEFAULT_FPMATH_MODE",
        "DNNL_MAX_CPU_ISA",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "ONEDNN_MAX_CPU_ISA",
        # Read by dynamo, functorch and inductor without one of the prefixes.
        "FAKE_ALLOW_META",
        "PYTORCH_JIT",
        "TENSORIFY_PYTHON_SCALARS",
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "TORCH_COMPILER_COLLECTIVES",
        "UNSAFE_SKIP_FSDP_MODULE_GUARDS",
        "_SPLITTER_MERGE_OVERLAPPING_FUSIONS",
    }
)

_GPU_PREFIXES = ("CUTEDSL_", "CUTLASS_", "TORCH_CUDNN_", "TRITON_")

_GPU_NAMES = frozenset(
    {
        "CUBLASLT_WORKSPACE_SIZE",
        "CUBLAS_WORKSPACE_CONFIG",
        "ENABLE_PERSISTENT_TMA_MATMUL",
        "ENABLE_TEMPLATE_TMA_STORE",
        "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_NVCC",
        "PYTORCH_ROCM_ARCH",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_BLAS_PREFER_CUBLASLT",
        "TORCH_BLAS_PREFER_HIPBLASLT",
        "TORCH_CUDA_ARCH_LIST",
    }
)

# Places, caches, compile workers, time limits, logs, dumps, profilers: none changes generated code.
_HARMLESS_ENDS = (
    "_DIR",
    "_HOME",
    "_URL",
    "_HOST",
    "_PORT",
    "_LOGGING_FILE",
    "_LOGPATH",
    "_SVG",
)
_HARMLESS = r"""
    .*(REDIS|REMOTE_CACHE|TIMEOUT|METRIC_TABLES|STROBELIGHT|CPROFILE|DYNAMO_PROFILER).*
    | .*(TOKEN|SECRET|PASSWORD|CREDENTIAL).*
    | TORCHINDUCTOR_(COMPILE_THREADS|WORKER_\w+|COMPILE_WORKER_\w+|QUIESCE_\w+)
    | TORCHINDUCTOR_(FX_GRAPH_CACHE\w*|AUTOGRAD_CACHE|AUTOTUNE_LOCAL_CACHE|BUNDLE\w*CACHE\w*)
    | TORCHINDUCTOR_(DUMP_LAUNCH_\w+|SAVE_ARGS|WRITE_MISSING_OPS|DEBUG_FUSION|PATTERN_MATCH_DEBUG)
    | TORCHINDUCTOR_(AUTOTUNE_NUM_CHOICES_DISPLAYED|MAX_AUTOTUNE_REPORT_CHOICES_STATS)
    | TORCHINDUCTOR_(BENCHMARK_KERNEL|AUTOHEURISTIC_COLLECT|WARN_MIX_LAYOUT|WINDOWS_TESTS)
    | TORCHDYNAMO_(VERBOSE|EXTENDED_\w+|PRINT_\w+|DEBUG_FUNCTION|REPRO_\w+|TRANSLATION_\w+)
    | TORCH_COMPILE_(DEBUG\w*|JOB_ID|STICKY_PGO_\w+|CACHE_KEY_TAG|REPLAY_RECORD|GRAPH_FORMAT)
    | TORCH_DYNAMO_RUN_GC_AFTER_COMPILE
    | INDUCTOR_(POST_FUSION|ORIG_FX|DOT_GRAPH|LOG_|TEST_|WRITE_)\w*
    | AOTINDUCTOR_REPRO_LEVEL | AOT_PARTITIONER_DEBUG | PARTITIONER_MEMORY_BUDGET_PARETO\w*
    | TRITON_(CACHE\w*|DUMP\w*|KERNEL_DUMP|PRINT_AUTOTUNING|REPRODUCER_PATH|REMOTE_CACHE\w*|STORE_\w+)
    """


@functools.cache
def _harmless() -> re.Pattern[str]:
    # Compiled when a variable asks for it, which takes milliseconds: most processes have none.
    return re.compile(_HARMLESS, re.VERBOSE)


# Directories whose content does decide what is generated.
_EXCEPTIONS = frozenset(
    {"TORCHINDUCTOR_CUTLASS_DIR", "TORCHINDUCTOR_CK_DIR", "TRITON_OVERRIDE_DIR"}
)


def cpp_compilers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The C++ compilers that torch looks for under these variables, the first one first."""
    chosen = environ.get("CXX")
    return (chosen,) if chosen else ("g++", "clang++", "c++")


def changes_code(name: str, device: str) -> bool:
    """Whether a variable of this name may change what the compiler makes for ``cpu`` or ``cuda``."""
    if name in _EXCEPTIONS:
        return not name.startswith("TRITON_") or device == "cuda"
    if name in _NAMES:
        return True
    counts = name.startswith(_PREFIXES)
    counts = counts or (device == "cuda" and (name in _GPU_NAMES or name.startswith(_GPU_PREFIXES)))
    return counts and not (name.endswith(_HARMLESS_ENDS) or _harmless().fullmatch(name))


def compiler_variables(environ: Mapping[str, str], device: str) -> dict[str, str]:
    """The variables of ``environ`` that count on ``device``, with their values, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if changes_code(name, device)}
