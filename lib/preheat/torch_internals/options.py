"""The options of one ``torch.compile`` call, and the backend object they lead to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from preheat.spec import Spec


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """What ``torch.compile`` takes, as plain values."""

    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def backend_object(self) -> Any:
        """The backend that ``torch.compile`` would make of these options.

        Raises ``RuntimeError`` (torch's own) for an option that torch does not know.
        """
        import torch

        options = dict(self.options) or None
        if self.backend == "regional_inductor":
            from preheat.torch_internals.regional import regional_backend

            return regional_backend
        if self.backend == "inductor":
            return torch._TorchCompileInductorWrapper(self.mode or "default", options, self.dynamic)
        if self.mode or options:
            return torch._TorchCompileWrapper(self.backend, self.mode, options or {}, self.dynamic)
        return self.backend

    def inductor_settings(self) -> dict[str, Any]:
        """What mode and options set in Inductor's configuration."""
        if self.backend != "inductor" or not (self.options or self.mode not in (None, "default")):
            return {}
        settings: dict[str, Any] = self.backend_object().config
        return settings

    def compile(self, fn: Any) -> Any:
        """Plain ``torch.compile`` with these options."""
        import torch

        return torch.compile(
            fn,
            backend=self.backend,
            mode=self.mode,
            dynamic=self.dynamic,
            fullgraph=self.fullgraph,
            options=dict(self.options) or None,
        )


def settled(spec: Spec) -> Spec:
    """A spec that says all about CUDA graphs in its options, where it wants none."""
    if spec.cuda_graphs or spec.backend != "inductor":
        return spec
    import torch._inductor

    given = torch._inductor.list_mode_options(spec.mode) if spec.mode else spec.options
    options = {**(given or {}), "triton.cudagraphs": False}
    return dataclasses.replace(spec, mode=None, options=options)


def options_of(spec: Spec) -> CompileOptions:
    """The compile options of a spec."""
    return CompileOptions(
        backend=spec.backend,
        mode=spec.mode,
        dynamic=spec.dynamic,
        fullgraph=spec.fullgraph,
        options=tuple(sorted((spec.options or {}).items())),
    )
