"""A whole program as a shared library (AOTInductor), with the live module's own parameters.

The library holds no weights: its constants are bound to the tensors of the worker's module, without a copy,
and bound again when the module has other ones. It checks neither what it is given nor what it was
bound to, so both are checked here, before each call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError, IncompatibleError
from preheat.image.alone import LibraryRecord, decode_library
from preheat.image.constants import constants_in
from preheat.image.format import unmarshal
from preheat.image.weights import digest_of
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.image.alone import LibraryConstant
    from preheat.store.protocol import ObjectOpener

LIBRARY_NAME = "library"


class LoadedLibrary:
    """One library in this process. ``run`` is called with the arguments of the program's own function.

    ``misfit`` is asked before each call, with the arguments by name: the first thing that is not as the
    library was built for, in words, or nothing.
    """

    def __init__(self, data: bytes, opener: ObjectOpener, program: Any, device: int) -> None:
        self._record = decode_library(data)
        self._runner = _runner(self._record, opener, device)
        self._program = program
        self._device = device
        self._lock = threading.Lock()
        self._bound: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._kept: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._known: dict[str, str] = self._runner.get_constant_names_to_original_fqns()
        scope: dict[str, Any] = {"torch": torch, "_preheat_run": self._run}
        exec(unmarshal(self._record.code), scope)  # noqa: S102  verified bytes of a trusted store
        self.run: Callable[..., Any] = scope["run"]
        self._arguments: Callable[[dict[str, Any]], str | None] = scope["misfit"]

    def bind(self) -> None:
        """Bind all constants to the live module's tensors and to those of the package.

        Raises ``IncompatibleError`` with a reason for each that is missing or of another kind.
        """
        record = self._record
        tensors: dict[str, torch.Tensor] = {}
        reasons: list[Reason] = []
        kept = []
        for constant in record.constants:
            found = self._live(constant.attribute)
            reasons += _unlike(constant, found)
            if found is not None:
                tensors[constant.attribute] = found[2]
        for weight in record.values:
            found = self._live(weight.name)
            if found is None or digest_of(found[2]) != weight.sha256:
                reasons.append(_other_values(weight.name))
            else:
                kept.append((*found, found[2]._version))
        if reasons:
            raise IncompatibleError(reasons=reasons)
        (stored,) = constants_in(bytearray(record.stored), [record.tensors])
        tensors |= stored
        if missing := sorted(set(self._known.values()) - set(tensors)):
            raise CorruptedError(f"The library has constants without a value: {missing[:5]}.")
        constants = {here: tensors[name] for here, name in self._known.items()}
        self._runner.update_constant_buffer(constants, False, True, True)
        self._constants = constants  # the library only points to them
        live = (self._live(one.attribute) for one in record.constants)
        self._kept = kept
        self._bound = [(*found, found[2].data_ptr()) for found in live if found is not None]

    def constants(self) -> dict[str, torch.Tensor]:
        """What the library is bound to, by its own names."""
        return {name: tensor.detach() for name, tensor in self._constants.items()}

    def _live(self, attribute: str) -> tuple[dict[str, Any], str, torch.Tensor] | None:
        """Where the module holds a tensor, and the tensor."""
        *path, last = attribute.split(".")
        owner = self._program
        for part in path:
            owner = getattr(owner, part, None)
        if owner is None:
            return None
        for place in (vars(owner).get("_parameters"), vars(owner).get("_buffers"), vars(owner)):
            if place is not None and isinstance(place.get(last), torch.Tensor):
                return place, last, place[last]
        return None

    def misfit(self, local_scope: dict[str, Any]) -> str | None:
        """Why a call with these arguments is not covered; binds again what was replaced."""
        for place, name, tensor, version in self._kept:
            if place.get(name) is not tensor or tensor._version != version:
                return f"the values of {name!r} are part of the library, and were changed"
        try:
            why = self._arguments(local_scope)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            return f"its arguments are built otherwise ({type(error).__name__}: {error})"
        return why or self._rebound()

    def _rebound(self) -> str | None:
        for place, name, tensor, pointer in self._bound:
            if place.get(name) is not tensor or tensor.data_ptr() != pointer:
                break
        else:
            return None
        with self._lock:
            try:
                self.bind()
            except IncompatibleError as error:
                return "; ".join(str(reason) for reason in error.reasons)
        return None

    def _run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        runner = self._runner
        if runner is None:
            raise RuntimeError("the library was released")
        outputs: list[torch.Tensor] = runner.run(inputs)
        return outputs

    def release(self) -> None:
        """No new call comes; the library itself stays in the process, as all libraries do."""


def _runner(record: LibraryRecord, opener: ObjectOpener, device: int) -> Any:
    opened = opener.open(LIBRARY_NAME)
    runners: Any = torch._C._aoti
    try:
        if record.device == "cpu":
            return runners.AOTIModelContainerRunnerCpu(opened.path(), 1)
        here = torch.cuda.get_device_capability(device)
        if tuple(record.capability) != here:
            raise IncompatibleError(reasons=[_other_gpu(record.capability, here)])
        return runners.AOTIModelContainerRunnerCuda(opened.path(), 1, f"cuda:{device}")
    except RuntimeError as error:
        reason = Reason(kind="load_failed", symbol="library", detail=str(error).splitlines()[0])
        raise IncompatibleError(reasons=[reason]) from error
    finally:
        opened.close()


def _other_gpu(built: tuple[int, ...], here: tuple[int, ...]) -> Reason:
    detail = f"built for compute capability {'.'.join(map(str, built))}, here {here[0]}.{here[1]}"
    return Reason(kind="environment_differs", symbol="compute capability", detail=detail)


def _other_values(name: str) -> Reason:
    return Reason(
        kind="weights_differ",
        symbol=name,
        detail="it is no parameter or buffer: the library was built with its values, which are others here",
    )


def _unlike(constant: LibraryConstant, found: tuple[Any, str, torch.Tensor] | None) -> list[Reason]:
    if found is None:
        detail = "the library needs it, and the live module has none"
        return [Reason(kind="constant_missing", symbol=constant.attribute, detail=detail)]
    tensor = found[2]
    here = (str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type)
    wanted = (f"torch.{constant.dtype}", constant.shape, constant.stride, constant.device)
    if here == wanted and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return []
    detail = f"the library was built for {_words(wanted)}, and the live module has {_words(here)}"
    return [Reason(kind="constant_differs", symbol=constant.attribute, detail=detail)]


def _words(kind: tuple[str, tuple[int, ...], tuple[int, ...], str]) -> str:
    dtype, shape, stride, device = kind
    return f"{dtype} {list(shape)} with strides {list(stride)} on {device}"
