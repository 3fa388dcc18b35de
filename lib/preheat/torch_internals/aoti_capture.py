"""Build side: a whole program through torch.export and AOTInductor, with Dynamo's guards around it.

torch.export bakes in what a program reads besides its arguments, and keeps no guard on it. So the program is
traced by Dynamo as well, as one graph that is not compiled: its guards say at each call whether the library
still stands for the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import RefusedError
from preheat.image.library import LIBRARY_NAME
from preheat.kinds.interface import Made
from preheat.kinds.registry import find
from preheat.torch_internals.capture import Capture
from preheat.torch_internals.guards import freezing
from preheat.torch_internals.image_writer import WrittenImage
from preheat.torch_internals.programs import entry_function

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Mapping

    from preheat.spec import Spec
    from preheat.torch_internals.payload import Payload

_WHY_NO_DYNAMO_FORM = "its program is one library, which is called without Dynamo"


@dataclasses.dataclass
class Exported:
    """What torch.export and AOTInductor made of one program.

    ``args``, ``kwargs``: the example that it was exported with. ``constants``: values of the library's
    constants by their names there. ``traced``: the tensors that Dynamo's graph takes, by their source.
    """

    program: torch.nn.Module
    function: types.FunctionType
    exported: torch.export.ExportedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    library: Path = Path()
    constants: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    traced: tuple[tuple[str, Any], ...] = ()
    device: str = "cpu"


class LibraryCapture(Capture):
    """One program as a library. Used as ``Capture`` is; there is no dynamo form.

    Raises ``RefusedError`` for a program that cannot be one.
    """

    def __init__(self, spec: Spec, first_identifier: int) -> None:
        if not isinstance(spec.fn, torch.nn.Module):
            raise RefusedError(
                f"output='aoti' is for modules, and this is a {type(spec.fn).__name__}.",
                remedy="Wrap the program in a torch.nn.Module whose forward calls it.",
            )
        if freezing() or (spec.options or {}).get("freezing"):
            raise RefusedError("freezing puts parameters into the library, which is to hold none")
        self._wanted = spec
        self._exported: Exported | None = None
        self._shares_memory = False
        traced = dataclasses.replace(
            spec,
            backend="eager",
            fullgraph=True,
            mode=None,
            options=None,
            dynamic=None,
            output=None,
            dynamic_shapes=None,
        )
        super().__init__(traced, first_identifier)
        self._traced = self.compiled
        self.compiled = self._call

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with (
            super().active(),
            # What export takes for constant has a guard then, and what may vary is marked.
            torch._dynamo.config.patch(
                specialize_int=True, specialize_float=True, automatic_dynamic_shapes=False
            ),
            tempfile.TemporaryDirectory(prefix="preheat-aoti-") as directory,
        ):
            self._directory = Path(directory)
            yield

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._exported is None:
            self._exported = self._export(args, kwargs)
        self._mark(args, kwargs)
        watched = self._unchanging(args, kwargs)
        versions = [tensor._version for _, tensor in watched]
        output = self._traced(*args, **kwargs)
        for (name, tensor), version in zip(watched, versions, strict=True):
            if tensor._version != version:
                raise RefusedError(
                    f"The program changes {name} in place, which a library must not."
                )
        self._shares_memory |= _share_memory(output, (args, kwargs, list(self._tensors())))
        return output

    def _unchanging(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[str, torch.Tensor]]:
        """What a program must leave alone: a library could change a copy of its own instead."""
        assert self._exported is not None
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        found = [("an argument", leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found += self._exported.program.named_parameters()
        found += self._exported.program.named_buffers()
        return [*found, *constant_tensors(self._exported)]

    def _tensors(self) -> Iterator[torch.Tensor]:
        assert isinstance(self._wanted.fn, torch.nn.Module)
        yield from self._wanted.fn.parameters()
        yield from self._wanted.fn.buffers()

    def _export(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exported:
        program = self._wanted.fn
        assert isinstance(program, torch.nn.Module)
        try:
            exported = torch.export.export(
                program, args, kwargs, dynamic_shapes=self._wanted.dynamic_shapes
            )
        except Exception as error:
            raise RefusedError(
                f"torch.export cannot take the program: {type(error).__name__}: {error}"[:2000]
            ) from error
        return Exported(program, entry_function(program), exported, args, kwargs)

    def _mark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._exported is not None
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        for leaf, value in zip(leaves, input_values(self._exported.exported), strict=False):
            if isinstance(leaf, torch.Tensor) and isinstance(value, torch.Tensor):
                for dimension, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        torch._dynamo.mark_dynamic(leaf, dimension)

    def payload(self) -> Payload:
        raise RefusedError(_WHY_NO_DYNAMO_FORM)

    def image(self) -> WrittenImage:
        """The lean form: guards as an image has them, and the library."""
        try:
            name = self._package.image.only_frame()
        except RefusedError as error:
            return WrittenImage({}, (), (error.message,))
        try:
            if self._shares_memory:
                raise RefusedError("a result is a view of an argument or parameter")
            made = self._compiled(name)
            kind = find("aoti")
            record = kind.write(kind.prepare(made))
        except RefusedError as error:
            return WrittenImage({}, (), (error.message,))
        self._package.image.library = record
        written = super().image()
        if written.refusals:
            return written
        objects = {**written.objects, LIBRARY_NAME: made.result.library.read_bytes()}
        return dataclasses.replace(written, objects=objects, code=(kind.name,))

    def _compiled(self, name: str) -> Made:
        exported = self._exported
        assert exported is not None
        exported.device = next((kind for kind in self._devices() if kind != "cpu"), "cpu")
        exported.traced = tuple(self._graphs.inputs)
        exported.library, exported.constants = compile_library(
            exported.exported, self._wanted, self._directory, exported.device
        )
        return Made(name, "aoti", None, exported)

    def _devices(self) -> Iterator[str]:
        assert self._exported is not None
        for tensor in self._tensors():
            yield tensor.device.type
        for value in input_values(self._exported.exported):
            if isinstance(value, torch.Tensor):
                yield value.device.type


def _share_memory(outputs: Any, inputs: Any) -> bool:
    def storages(value: Any) -> set[int]:
        leaves = torch.utils._pytree.tree_leaves(value)
        return {
            leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor)
        } - {0}

    return bool(storages(outputs) & storages(inputs))


def constant_tensors(made: Exported) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of the module, by attribute, that torch.export took for constant."""
    from torch.export.graph_signature import InputKind

    for spec in made.exported.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR and spec.target is not None:
            found: Any = made.program
            for part in spec.target.split("."):
                found = getattr(found, part, None)
            if isinstance(found, torch.Tensor):
                yield spec.target, found


def input_values(exported: torch.export.ExportedProgram) -> list[Any]:
    """What each flat argument was exported as: a fake tensor, or a constant."""
    from torch.export.graph_signature import InputKind

    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    found = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            continue
        given: Any = spec.arg
        node = nodes.get(getattr(given, "name", ""))
        found.append(node.meta.get("val") if node is not None else getattr(given, "value", None))
    return found


def compile_library(
    exported: torch.export.ExportedProgram, spec: Spec, directory: Path, device: str
) -> tuple[Path, dict[str, torch.Tensor]]:
    """Path of the library, and the values of its constants. Raises ``RefusedError``."""
    import torch._functorch.config as functorch_config
    import torch._inductor

    mode = torch._inductor.list_mode_options(spec.mode) if spec.mode else {}
    options: dict[str, Any] = {
        **mode,
        **(spec.options or {}),
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        "aot_inductor.output_path": str(directory),
        # Otherwise small parameters would be written into the code.
        "always_keep_tensor_constants": True,
        "triton.cudagraphs": False,
    }
    if device != "cpu":
        options["aot_inductor.embed_kernel_binary"] = True
    try:
        with functorch_config.patch(bundled_autograd_cache=False):
            made: Any = torch._inductor.aot_compile(
                exported.module(),
                exported.example_inputs[0],
                exported.example_inputs[1],
                options=options,
            )
    except Exception as error:
        raise RefusedError(
            f"AOTInductor cannot compile the program: {type(error).__name__}: {error}"[:2000]
        ) from error
    library = next(Path(one) for one in made if isinstance(one, str) and one.endswith(".so"))
    weights = (one for one in made if not isinstance(one, str))
    return library, {name: value[0] for one in weights for name, value in one.items()}
