"""The dynamo form of a package: written by a build, loaded by a worker."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from preheat.torch_internals import payload as payloads
from preheat.torch_internals.versions import torch_version

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from preheat.store.protocol import ObjectOpener

KIND = "dynamo"
FORMAT = payloads.FORMAT
PAYLOAD_NAME = "payload"
KERNEL_PREFIX = "kernel/"


@dataclasses.dataclass(frozen=True)
class LoadedForm:
    """``call`` runs the program; ``uninstall`` takes its variants away."""

    call: Callable[..., Any]
    uninstall: Callable[[], None]


def install_dynamo_form(
    fn: Any,
    opener: ObjectOpener,
    decide: Callable[[str, str], str],
) -> LoadedForm:
    """Install the form for the live program ``fn``.

    ``decide(symbol, why)`` is asked about each frame that no variant covers; it says ``compile`` or
    ``eager``, or raises. Raises ``IncompatibleError`` with reasons when the live code differs, and
    ``CorruptedError`` for objects that do not belong together.
    """
    torch_version()
    from preheat.image.programs import device_index
    from preheat.torch_internals.dispatch import dispatching
    from preheat.torch_internals.install import install
    from preheat.torch_internals.kernels import KernelLoader
    from preheat.torch_internals.programs import callable_with_code, entry_function

    opened = opener.open(PAYLOAD_NAME)
    try:
        data = opened.read()
    finally:
        opened.close()
    payload = payloads.parse(data)
    kernels = {
        name.removeprefix(KERNEL_PREFIX): name
        for name in opener.names()
        if name.startswith(KERNEL_PREFIX)
    }
    loader = KernelLoader(opener.open, kernels)
    program = callable_with_code(fn)
    installed = install(
        hashlib.sha256(data).hexdigest(),
        payload,
        entry_function(program),
        loader.answering,
        device_index(fn),
    )

    def ask(code: types.CodeType, why: str) -> str:
        return decide(code.co_qualname, why)

    call = dispatching(program, payload.options, ask, installed.left_to_python.__contains__)
    return LoadedForm(call, installed.uninstall)
