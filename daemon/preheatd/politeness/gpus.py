"""The GPUs that builds use: which one a build takes, how busy it is, and when that is too busy."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, Protocol

from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from preheatd.politeness.settings import Politeness

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU, or a part of one (MIG), at one moment.

    ``identity`` is the same for every name of the same GPU. ``memory_used`` and ``utilisation`` are
    fractions, None where the driver does not tell. ``trouble`` says why nothing is known.
    """

    identity: str
    memory_used: float | None = None
    utilisation: float | None = None
    trouble: str = ""


class Gpus(Protocol):
    """The outside world of GPUs."""

    def look(self, names: Collection[str]) -> Mapping[str, GpuState]:
        """How each of these is now, by the names that CUDA_VISIBLE_DEVICES uses. Blocks; may raise."""
        ...


def gpu_names(device: str, own: Mapping[str, str], inherited: Mapping[str, str]) -> frozenset[str]:
    """The GPUs that a build takes, as CUDA_VISIBLE_DEVICES names them.

    A build takes the first that it sees; ``0`` where nothing is said. Only where the target's ``own``
    variables list several does it take them all. Empty for another device, or when all are hidden.
    """
    if device != "cuda":
        return frozenset()
    if VISIBLE_DEVICES in own:
        return frozenset(_visible(own[VISIBLE_DEVICES]))
    return frozenset(list(_visible(inherited.get(VISIBLE_DEVICES, "0")))[:1])


def _visible(written: str) -> Iterator[str]:
    """The names up to the first that is none: CUDA does not look further."""
    for word in written.split(","):
        name = word.strip()
        if name.isdecimal():
            yield str(int(name))
        elif name.startswith(("GPU-", "MIG-")):
            yield name
        else:
            return


def why_busy(name: str, state: GpuState, politeness: Politeness) -> Reason | None:
    """Why no build may start on this GPU now; None where one may. What is not known is not busy."""
    checks = (
        (state.memory_used, politeness.gpu_memory_below, "of memory", "gpu_memory_below"),
        (
            state.utilisation,
            politeness.gpu_utilisation_below,
            "of its time",
            "gpu_utilisation_below",
        ),
    )
    for used, below, what, key in checks:
        if used is not None and below < 1 and used >= below:
            detail = f"{label(name)}: {used:.0%} {what} is used, less than {below:.0%} is allowed ({key})"
            return Reason(kind="gpu_busy", detail=detail)
    return None


def label(name: str) -> str:
    """A GPU for a person."""
    return f"GPU {name}" if name.isdecimal() else name


class Nvml:
    """The GPUs of NVIDIA's driver, by way of nvidia-ml-py (the extra ``gpu``).

    ``library``: what answers in place of the module ``pynvml``. The driver is opened for each look and
    closed after it: an idle daemon holds no GPU awake.

    Not promised: where CUDA counts GPUs of several kinds otherwise than the driver, by speed, a number
    means the driver's. CUDA_DEVICE_ORDER=PCI_BUS_ID makes both the same.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library

    def look(self, names: Collection[str]) -> Mapping[str, GpuState]:
        """See ``Gpus``. Never raises for a missing library, driver or GPU: that is its trouble."""
        try:
            library = self._library or importlib.import_module("pynvml")
            library.nvmlInit()
        except ImportError:
            why = "nvidia-ml-py is not installed (the extra `gpu`)"
            return {name: GpuState(identity=name, trouble=why) for name in names}
        except Exception as error:  # NVMLError exists only where the library does
            return {name: GpuState(identity=name, trouble=_text(error)) for name in names}
        try:
            return {name: _state(library, name) for name in names}
        finally:
            with contextlib.suppress(library.NVMLError):
                library.nvmlShutdown()


def _state(library: Any, name: str) -> GpuState:
    try:
        handle = _handle(library, name)
        identity = library.nvmlDeviceGetUUID(handle)
    except library.NVMLError as error:
        return GpuState(identity=name, trouble=_text(error))
    memory = utilisation = None
    # A part of a GPU has no utilisation, a GPU that shares the machine's memory has none of its own.
    with contextlib.suppress(library.NVMLError, ZeroDivisionError):
        found = library.nvmlDeviceGetMemoryInfo(handle)
        memory = found.used / found.total
    with contextlib.suppress(library.NVMLError):
        utilisation = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return GpuState(identity=str(identity), memory_used=memory, utilisation=utilisation)


def _handle(library: Any, name: str) -> Any:
    if name.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    try:
        return library.nvmlDeviceGetHandleByUUID(name)
    except library.NVMLError:
        # CUDA takes the beginning of an identity as well.
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            if str(library.nvmlDeviceGetUUID(handle)).startswith(name):
                return handle
        raise


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
