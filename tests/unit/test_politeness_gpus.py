"""GPUs: which one a build takes, when it is busy, and NVIDIA's library as a double and as it is."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheatd.politeness.gpus import VISIBLE_DEVICES, GpuState, Nvml, gpu_names, why_busy
from preheatd.politeness.settings import Politeness


def names(own: str | None = None, inherited: str | None = None, device: str = "cuda") -> set[str]:
    def variables(value: str | None) -> dict[str, str]:
        return {} if value is None else {VISIBLE_DEVICES: value}

    return set(gpu_names(device, variables(own), variables(inherited)))


def test_which_gpu_a_build_takes() -> None:
    assert names() == {"0"}
    assert names(inherited="2,3") == {"2"}
    assert names(own="2,3") == {"2", "3"}
    assert names(own="1", inherited="0") == {"1"}
    assert names(own=" 01 , GPU-4be1 ,MIG-77a0") == {"1", "GPU-4be1", "MIG-77a0"}


def test_a_build_without_a_gpu_takes_none() -> None:
    assert names(own="0", device="cpu") == set()
    for hidden in ("", "-1", "none", "NoDevFiles"):
        assert names(own=hidden) == set()
        assert names(inherited=hidden) == set()


def test_names_after_an_impossible_one_do_not_count() -> None:
    assert names(own="1,-1,2") == {"1"}
    assert names(own="-1,2") == set()


def reason(politeness: Politeness | None = None, **state: Any) -> str:
    found = why_busy("0", GpuState(identity="x", **state), politeness or Politeness())
    return "" if found is None else str(found)


def test_why_a_gpu_is_busy() -> None:
    memory = reason(Politeness(gpu_memory_below=0.4), memory_used=0.81, utilisation=1.0)
    assert "gpu busy" in memory
    assert "GPU 0: 81% of memory is used, less than 40% is allowed (gpu_memory_below)" in memory
    assert "gpu_utilisation_below" in reason(memory_used=0.1, utilisation=0.5)
    named = why_busy("MIG-1", GpuState(identity="x", memory_used=1.0), Politeness())
    assert named is not None
    assert named.detail.startswith("MIG-1: 100%")


fractions = st.one_of(st.none(), st.floats(0, 1))


@given(fractions, fractions, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_build_starts_below_both_thresholds_alone(
    memory: float | None, utilisation: float | None, memory_below: float, utilisation_below: float
) -> None:
    politeness = Politeness(gpu_memory_below=memory_below, gpu_utilisation_below=utilisation_below)
    busy = why_busy(
        "0", GpuState(identity="x", memory_used=memory, utilisation=utilisation), politeness
    )
    checks = ((memory, memory_below), (utilisation, utilisation_below))
    assert (busy is None) == all(
        used is None or below == 1 or used < below for used, below in checks
    )


class NVMLError(Exception):
    """As the library's."""


@dataclasses.dataclass
class Memory:
    used: int
    total: int


@dataclasses.dataclass
class Rates:
    gpu: int


@dataclasses.dataclass
class Library:
    """A double of the module ``pynvml``: GPUs by identity; a part of one has no utilisation."""

    gpus: dict[str, tuple[Memory, Rates | None]]
    down: bool = False
    open: int = 0

    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        if self.down:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._whole())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self._whole()):
            raise NVMLError("Invalid Argument")
        return self._whole()[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.gpus:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Memory:
        return self.gpus[handle][0]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Rates:
        rates = self.gpus[handle][1]
        if rates is None:
            raise NVMLError("Not Supported")
        return rates

    def _whole(self) -> list[str]:
        return [name for name in self.gpus if name.startswith("GPU-")]


def library(**options: Any) -> Library:
    return Library(
        {
            "GPU-aa11": (Memory(20, 80), Rates(5)),
            "GPU-bb22": (Memory(0, 0), Rates(100)),
            "MIG-cc33": (Memory(9, 10), None),
        },
        **options,
    )


def test_gpus_by_number_identity_and_part() -> None:
    double = library()
    found = Nvml(double).look(["0", "GPU-aa11", "GPU-b", "MIG-cc33"])
    assert found["0"] == GpuState(identity="GPU-aa11", memory_used=0.25, utilisation=0.05)
    assert found["GPU-aa11"] == found["0"]
    assert found["GPU-b"] == GpuState(identity="GPU-bb22", memory_used=None, utilisation=1.0)
    assert found["MIG-cc33"] == GpuState(identity="MIG-cc33", memory_used=0.9, utilisation=None)
    assert double.open == 0


def test_one_unknown_gpu_hides_no_other() -> None:
    double = library()
    found = Nvml(double).look(["0", "7", "GPU-zz"])
    assert found["0"].trouble == ""
    assert "Invalid Argument" in found["7"].trouble
    assert "Not Found" in found["GPU-zz"].trouble
    assert why_busy("7", found["7"], Politeness()) is None
    assert double.open == 0


def test_a_driver_that_is_not_there() -> None:
    found = Nvml(library(down=True)).look(["0"])
    assert found["0"].trouble == "NVMLError: Driver Not Loaded"


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert "nvidia-ml-py is not installed" in Nvml().look(["0"])["0"].trouble


def test_the_double_is_like_the_library() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    calls = [name for name in dir(Library) if name.startswith("nvml")]
    assert len(calls) == 8
    assert [name for name in calls if not callable(getattr(real, name, None))] == []
    assert issubclass(real.NVMLError, Exception)
    fields = {name for name, _ in real.c_nvmlMemory_t._fields_}
    assert {"used", "total"} <= fields
    assert "gpu" in {name for name, _ in real.c_nvmlUtilization_t._fields_}


def test_the_library_as_it_is_here() -> None:
    """With a driver or without: an answer, and no exception."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    (state,) = Nvml().look(["0"]).values()
    assert state.trouble or state.identity.startswith(("GPU-", "MIG-"))
