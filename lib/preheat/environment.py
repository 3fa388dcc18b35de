"""The environment of a package: capture it, compare two, explain the difference.

``python -m preheat.environment`` prints what the daemon wants to know about an interpreter, as JSON:
``{"cpu": Environment, "cuda": Environment | null, "digests": {...}, "default_device": ...}``. It
imports torch, and neither user code nor the compiler; run it with ``python -P`` where the working
directory is not to be trusted.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.compiler_variables import compiler_variables
from preheat.differences import differences
from preheat.manifest import Environment, Gpu, environment_digest
from preheat.settings import capture_settings, settings_differences

if TYPE_CHECKING:
    from preheat.verdict import Reason

__all__ = [
    "capture",
    "capture_settings",
    "default_device",
    "environment_differences",
    "probe",
    "settings_differences",
]

_CPU_FLAG_LINES = ("flags", "Features")  # of /proc/cpuinfo: x86, ARM
_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_DRIVER_TEXT = Path("/proc/driver/nvidia/version")


def capture(device: str) -> Environment:
    """What holds in this process for a target on ``device`` (``cpu`` or ``cuda``).

    Under ``cpu`` everything about GPUs is empty and CUDA is never initialised; under ``cuda`` it is.
    Raises ``ValueError`` for another device. Not covered: versions of libraries other than torch and
    Triton, and what user code changes after the start (that is ``Settings``).
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"The device must be 'cpu' or 'cuda', not {device!r}.")
    import torch

    cuda = device == "cuda"
    return Environment(
        python=_python(),
        abi=_abi(),
        platform=_platform(),
        torch=str(torch.__version__),
        torch_git=str(torch.version.git_version or ""),
        triton=_triton() if cuda else None,
        cuda=_toolkit() if cuda else None,
        driver=_driver() if cuda else None,
        device=device,
        gpus=_gpus() if cuda else (),
        cpu_isa=f"{torch.backends.cpu.get_cpu_capability()} {_cpu_flags()}".strip(),
        cpu_count=_cpu_count(),
        variables=compiler_variables(os.environ, device),
    )


def default_device() -> str:
    """``cuda`` where torch sees a usable GPU, else ``cpu``. Does not initialise CUDA."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def environment_differences(wanted: Environment, here: Environment) -> tuple[Reason, ...]:
    """Why a package for ``wanted`` is not for ``here``; empty when they are equal.

    One reason a field, its name as ``symbol``; environment variables one by one, as
    ``variables.NAME``.
    """
    return differences("environment_differs", wanted, here)


def _python() -> str:
    optimised = f" -{'O' * sys.flags.optimize}" if sys.flags.optimize else ""
    return f"{platform.python_implementation()} {platform.python_version()}{optimised}"


def _abi() -> str:
    """As in the names of extension modules; the configuration of the whole build says the same."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    return suffix.removesuffix(".so").removeprefix(".")


def _platform() -> str:
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        libc = "".join(platform.libc_ver())
    parts = (platform.system(), platform.machine(), libc.replace(" ", ""))
    return "-".join(part for part in parts if part).lower()


def _cpu_flags() -> str:
    """A short digest of the instruction sets: CPU kernels are compiled for this very processor."""
    try:
        # The first processor's lines are enough; a large machine has hundreds of processors.
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            for line in lines:
                name, _, flags = line.partition(":")
                if name.strip() in _CPU_FLAG_LINES:
                    words = " ".join(sorted(flags.split()))
                    return hashlib.sha256(words.encode()).hexdigest()[:12]
    except OSError:
        pass
    return ""


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _triton() -> str | None:
    """From the installed distribution: importing Triton takes long and starts its driver."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _toolkit() -> str | None:
    import torch

    if torch.version.hip:
        return f"hip {torch.version.hip}"
    return torch.version.cuda


def _driver() -> str | None:
    for path in (_DRIVER_VERSION, _DRIVER_TEXT):
        try:
            text = path.read_text()
        except OSError:
            continue
        if path is _DRIVER_VERSION:
            return text.strip()
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...": the dotted number
        for word in text.split():
            if word.count(".") >= 1 and word.replace(".", "").isdigit():
                return word
    return None


def _gpus() -> tuple[Gpu, ...]:
    """The distinct kinds of visible GPUs, in a fixed order."""
    import torch

    if not torch.cuda.is_available():
        return ()
    kinds = set()
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        kinds.add((torch.cuda.get_device_name(index), f"{major}.{minor}"))
    return tuple(Gpu(name=name, capability=capability) for name, capability in sorted(kinds))


def probe() -> dict[str, Any]:
    """What ``python -m preheat.environment`` prints."""
    device = default_device()
    found = {"cpu": capture("cpu"), "cuda": capture("cuda") if device == "cuda" else None}
    digests = {name: environment_digest(one) if one else None for name, one in found.items()}
    return {**found, "digests": digests, "default_device": device}


def main() -> None:
    """Print the probe's answer; what libraries print meanwhile goes to standard error."""
    from preheat.lifeline import live_with_parent  # only here: workers outlive who starts them

    live_with_parent(1)
    answer = os.dup(1)
    os.dup2(2, 1)
    line = msgspec.json.encode(probe(), order="deterministic") + b"\n"
    with os.fdopen(answer, "wb") as stream:
        stream.write(line)


if __name__ == "__main__":
    main()
