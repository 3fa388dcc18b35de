"""The settings of a process that user code may change after the start, and their differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.differences import difference, differences
from preheat.manifest import Settings
from preheat.torch_internals.configuration import changed_configuration, is_opaque

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.verdict import Reason

_KIND = "settings_differ"

# Public switches that decide which code is generated or which kernel is called, with the values that
# a process starts with.
_SWITCHES: dict[str, object] = {
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "torch.backends.cuda.matmul.allow_fp16_accumulation": False,
    "torch.backends.cudnn.benchmark": False,
    "torch.backends.cudnn.deterministic": False,
    "torch.backends.cudnn.enabled": True,
    "torch.backends.mkldnn.deterministic": False,
    "torch.backends.mkldnn.enabled": True,
}
_PRECISIONS = (
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
)


def capture_settings() -> Settings:
    """What holds in this thread now. Imports torch, never the compiler; initialises no CUDA.

    Call it outside of configuration patches of your own. ``configuration`` holds what differs from
    the start of a process: compiler configuration under its full name, and switches of
    ``torch.backends`` and deterministic algorithms.
    """
    import torch

    return Settings(
        threads=torch.get_num_threads(),
        default_dtype=str(torch.get_default_dtype()),
        matmul_precision=_matmul_precision(),
        configuration={**_determinism(), **_switches(), **changed_configuration()},
    )


def settings_differences(wanted: Settings, here: Settings) -> tuple[Reason, ...]:
    """Why a package built under ``wanted`` is not for ``here``.

    A value that cannot be represented is always a difference: equal names do not say that it is the
    same.
    """
    return (*differences(_KIND, wanted, here), *opaque_settings(here))


def opaque_settings(settings: Settings) -> Iterator[Reason]:
    """Settings that can never be compared, so that a package built under them would never be used."""
    for name, text in settings.configuration.items():
        if is_opaque(text):
            yield difference(_KIND, f"configuration.{name}", text, "a value that may be another")


def _matmul_precision() -> str:
    """The one word of the older API; under a mix with the newer API, the setting of every backend."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return " ".join(f"{name}={_read(name)}" for name in _PRECISIONS)


def _determinism() -> dict[str, str]:
    import torch

    found = {}
    if torch.are_deterministic_algorithms_enabled():
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        found["torch.use_deterministic_algorithms"] = f"True, warn_only={warn_only}"
    # Filling needs the switch above; torch starts with it on.
    if _read("torch.utils.deterministic.fill_uninitialized_memory") == "False":
        found["torch.utils.deterministic.fill_uninitialized_memory"] = "False"
    return found


def _switches() -> dict[str, str]:
    found = {name: _read(name) for name in _SWITCHES}
    return {name: text for name, text in found.items() if text not in (str(_SWITCHES[name]), "")}


def _read(name: str) -> str:
    """A public attribute's value as text, "" where this torch does not have it or refuses to say."""
    import torch

    value: object = torch
    try:
        for part in name.split(".")[1:]:
            value = getattr(value, part)
    except (AttributeError, AssertionError, RuntimeError):
        return ""
    return str(value)
