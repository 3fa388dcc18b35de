"""Build side: a lean image from what was recorded while a program compiled.

Whatever has no meaning without the compiler refuses the image, with the reason; the dynamo form is then
the only one.
"""

from __future__ import annotations

import dataclasses
import itertools
import marshal
import re
import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import RefusedError
from preheat.image import format as image_format
from preheat.image.codes import entry_code
from preheat.image.constants import write_constants
from preheat.image.enumeration import SETTINGS
from preheat.image.format import (
    CONSTANTS_NAME,
    IMAGE_NAME,
    INTERPRETER,
    CppKernel,
    Global,
    Graph,
    Image,
    TritonKernel,
    Unit,
    Variant,
)
from preheat.image.standins import MODULES
from preheat.image.surroundings import Surroundings
from preheat.image.values import UnportableError, encode, encode_code
from preheat.image.weights import record_weights
from preheat.torch_internals import wrapper_source
from preheat.torch_internals.dynamo_form import KERNEL_PREFIX
from preheat.torch_internals.graph_capture import CompiledGraph
from preheat.torch_internals.graph_parts import backwards, check_complete, forward, joined
from preheat.torch_internals.guard_steps import about_compiler, pruned
from preheat.torch_internals.looked_up import attributes_of, guarded_names, names_of
from preheat.torch_internals.traced_writer import traced_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preheat.image.call_checks import Check
    from preheat.image.format import Modes
    from preheat.image.surroundings import Training
    from preheat.torch_internals.graph_capture import AnyGraph, BackendCall
    from preheat.torch_internals.guard_tree import GuardTree
    from preheat.torch_internals.payload import CodeRecord
    from preheat.torch_internals.triton_kernels import TritonRecorder

_COMPILER = ("torch._dynamo", "torch._inductor")
_IMPORTED = "__import_"
_GLOBAL = re.compile(r"\bG\['([^']+)'\]")
_WRAPPING_MODULE = "torch._dynamo.external_utils"


@dataclasses.dataclass(frozen=True)
class Frame:
    """One compiled version of a code object.

    ``scope`` are its globals, ``installed`` what Dynamo put into them, ``backends`` the names of its
    graphs.
    """

    tree: GuardTree
    code: types.CodeType
    scope: dict[str, Any]
    installed: Mapping[str, Any]
    modes: Modes
    backends: tuple[str, ...]
    call_checks: tuple[Check, ...]
    load_checks: tuple[Check, ...]


@dataclasses.dataclass(frozen=True)
class WrittenImage:
    """``objects``: content by name. ``code``: the kinds of compiled code in it.

    ``refusals``: why there is no image; then there are no objects.
    """

    objects: dict[str, bytes]
    kernels: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


class ImageWriter:
    """Collects graphs and frames, and writes them as one image."""

    def __init__(self, target: Any, triton: TritonRecorder) -> None:
        self._target = target
        self._triton = triton
        self._frames: dict[types.CodeType, list[Frame]] = {}
        self._machine_code: dict[str, bytes] = {}
        self._calls: dict[str, BackendCall | None] = {}
        self.library = b""

    def add_graph(self, name: str, call: BackendCall | None) -> None:
        """The graph that compiled bytecode calls by this name."""
        self._calls[name] = call

    def add_frame(self, original: types.CodeType, frame: Frame) -> None:
        """A compiled version of a code object."""
        self._frames.setdefault(original, []).append(frame)

    def only_frame(self) -> str:
        """The name of the graph of a program that is one graph. Raises ``RefusedError`` for another."""
        frames = [frame for frames in self._frames.values() for frame in frames]
        graphs = [name for frame in frames for name in frame.backends]
        if len(frames) != 1 or len(graphs) != 1:
            raise RefusedError(
                f"the examples lead to {len(frames)} versions of the program with {len(graphs)} graphs, "
                "and a library is one graph: declare what varies in dynamic_shapes"
            )
        return graphs[0]

    def graph_count(self) -> int:
        """How many graphs the frames call."""
        return sum(len(frame.backends) for frames in self._frames.values() for frame in frames)

    def write(
        self,
        units: Sequence[tuple[types.CodeType, CodeRecord]],
        kernels: Mapping[str, str],
        refusals: tuple[str, ...],
    ) -> WrittenImage:
        """The image of all units, the target's own code first.

        ``kernels``: path of the library by the request that it answers. ``refusals``: what is known to
        have no meaning in another process.
        """
        if refusals:
            return WrittenImage({}, (), refusals)
        try:
            return self._write(units, kernels)
        except UnportableError as error:
            return WrittenImage({}, (), (str(error),))

    def _write(
        self, units: Sequence[tuple[types.CodeType, CodeRecord]], kernels: Mapping[str, str]
    ) -> WrittenImage:
        main, *others = units
        if main[0] not in self._frames:
            wrapping = [unit for unit in others if unit[1].module == _WRAPPING_MODULE]
            if len(wrapping) != 1:
                raise UnportableError("the target's own frame was not compiled")
            main = wrapping[0]
            others = [unit for unit in others if unit is not main]
        ordered = [main, *others]
        for code, _ in ordered:
            for frame in self._frames.get(code, ()):
                if frame.tree.refusals:
                    raise UnportableError("; ".join(dict.fromkeys(frame.tree.refusals)))
        # A library runs instead of what was only traced for its guards.
        calls = [] if self.library else [self._call(name) for name in self._graph_names(ordered)]
        graphs = [*(forward(call) for call in calls), *backwards(calls)]
        constants, tensors = write_constants([graph.constants for graph in graphs])
        paths = {path: digest for digest, path in kernels.items()}
        around = itertools.chain(joined(calls), itertools.repeat((Surroundings(), None)))
        written = [
            self._graph(graph, *parts, records, paths)
            for graph, parts, records in zip(graphs, around, tensors, strict=False)
        ]
        image = Image(
            interpreter=INTERPRETER,
            torch=str(torch.__version__),
            guard_settings={
                name: getattr(torch._dynamo.config, name)
                for name in SETTINGS
                if hasattr(torch._dynamo.config, name)
            },
            units=tuple(
                self._unit(code, record, "main" if index == 0 else "")
                for index, (code, record) in enumerate(ordered)
            ),
            graphs=tuple(written),
            globals=tuple(self._globals(ordered)),
            weights=self._weights() if any(graph.frozen for graph in graphs) else (),
            library=self.library,
        )
        objects = {IMAGE_NAME: image_format.encode(image)}
        if constants:
            objects[CONSTANTS_NAME] = constants
        objects |= self._machine_code
        used = {kernel.object for graph in written for kernel in graph.kernels}
        kinds = tuple(dict.fromkeys(graph.kind for graph in written))
        return WrittenImage(objects, tuple(sorted(used - set(objects))), code=kinds)

    def _weights(self) -> tuple[image_format.Weight, ...]:
        if not isinstance(self._target, torch.nn.Module):
            raise UnportableError(
                "parameters of a module that is no target are frozen into a graph"
            )
        return record_weights(self._target)

    # --- graphs ----------------------------------------------------------------------------

    def _graph_names(self, units: Sequence[tuple[types.CodeType, CodeRecord]]) -> list[str]:
        frames = [frame for code, _ in units for frame in self._frames.get(code, ())]
        return list(dict.fromkeys(name for frame in frames for name in frame.backends))

    def _call(self, name: str) -> BackendCall:
        call = self._calls.get(name)
        if call is None:
            raise UnportableError("a graph was compiled by a backend that makes no image")
        check_complete(call)
        return call

    def _graph(
        self,
        graph: AnyGraph,
        surroundings: Surroundings,
        training: Training | None,
        constants: tuple[image_format.ConstantTensor, ...],
        paths: Mapping[str, str],
    ) -> Graph:
        if not isinstance(graph, CompiledGraph):
            return traced_graph(graph, surroundings, training, constants)
        if graph.torchbind:
            raise UnportableError("a graph holds a TorchBind object")
        if len(graph.devices) > 1:
            raise UnportableError("a graph runs on several GPUs")
        wrapper = wrapper_source.reduce(graph.source, graph.scope, graph.constants)
        return Graph(
            code=marshal.dumps(wrapper.code),
            entry=wrapper_source.ENTRY,
            kernels=tuple(
                self._kernel(name, graph.scope.get(name), paths) for name in wrapper.kernels
            ),
            names=wrapper.names,
            standins=wrapper.standins,
            constants=constants,
            aligned=graph.aligned,
            mutated=graph.mutated,
            surroundings=surroundings,
            captured=graph.captured,
            training=training,
        )

    def _kernel(self, name: str, kernel: Any, paths: Mapping[str, str]) -> CppKernel | TritonKernel:
        result = getattr(kernel, "result", None)
        if callable(result) and not isinstance(kernel, types.BuiltinFunctionType):
            kernel = result()
        if hasattr(kernel, "launchers"):
            record, code = self._triton.kernel(name, kernel)
            self._machine_code[record.object] = code
            return record
        path = getattr(getattr(kernel, "__self__", None), "__file__", None)
        if path is None or path not in paths:
            raise UnportableError(f"kernel {name!r} is a {type(kernel).__name__}")
        return CppKernel(name, KERNEL_PREFIX + paths[path], kernel.__name__)

    # --- code ------------------------------------------------------------------------------

    def _unit(self, code: types.CodeType, record: CodeRecord, role: str) -> Unit:
        if record.module == _WRAPPING_MODULE:
            role = "wrapped"
        role = role or ("resume" if record.resume else "nested")
        original = None if role in ("main", "nested") else encode_code(code)
        return Unit(
            role=role,
            module=record.module,
            names=record.names,
            source=record.source or "",
            digest=record.digest,
            original=original,
            entry=entry_code(code),
            variants=tuple(self._variant(frame) for frame in self._frames.get(code, ())),
        )

    def _variant(self, frame: Frame) -> Variant:
        _refuse_unknown_helpers(frame)
        return Variant(
            code=encode_code(frame.code),
            guards=pruned(frame.tree.steps),
            call_checks=_checks(frame.call_checks),
            load_checks=_checks(frame.load_checks),
            modes=frame.modes,
        )

    def _globals(self, units: Sequence[tuple[types.CodeType, CodeRecord]]) -> Iterator[Global]:
        names = self._graph_names(units)
        graphs = {name: index for index, name in enumerate(names)}
        skipped = frozenset(names if self.library else ())
        resumes = {
            name: index
            for index, (_, record) in enumerate(units)
            if record.resume
            for name in record.names
        }
        seen = set()
        for code, record in units:
            modules = dict(record.imports)
            for parts in self._frames.get(code, ()):
                for name in _looked_up(parts):
                    known = name in parts.installed or name in modules or name.startswith(_IMPORTED)
                    if (record.module, name) in seen or not known or name in skipped:
                        continue
                    seen.add((record.module, name))
                    value = parts.installed.get(name, parts.scope.get(name))
                    found = _global(record.module, name, value, graphs, resumes, modules)
                    if found is not None:
                        yield found


def _global(
    module: str,
    name: str,
    value: Any,
    graphs: Mapping[str, int],
    resumes: Mapping[str, int],
    modules: Mapping[str, str],
) -> Global | None:
    if name in graphs:
        return Global(module, name, "graph", graphs[name])
    if name in resumes:
        return Global(module, name, "resume", resumes[name])
    if name.startswith("__builtins_dict__"):
        return Global(module, name, "builtins")
    target = value.__name__ if isinstance(value, types.ModuleType) else modules.get(name)
    if target is None or ":" in target:
        return Global(module, name, "value", 0, encode(value))
    if target.startswith(_COMPILER):
        if target not in MODULES:
            return None  # only a guard that was dropped names it, or the code is refused
        return Global(module, name, "standin", 0, encode(target))
    return Global(module, name, "module", 0, encode(target))


def _refuse_unknown_helpers(parts: Frame) -> None:
    """Compiled code may only use what a stand-in has, of the compiler's modules."""
    for name, attribute in attributes_of(parts.code):
        value = parts.scope.get(name)
        if not isinstance(value, types.ModuleType) or not value.__name__.startswith(_COMPILER):
            continue
        if attribute not in MODULES.get(value.__name__, {}):
            raise UnportableError(f"compiled code uses {value.__name__}.{attribute}")


def _looked_up(frame: Frame) -> list[str]:
    """Globals that a frame's bytecode, guards and checks ask for, each once."""
    checks = (*frame.call_checks, *frame.load_checks)
    checked = (name for check in checks for name in _GLOBAL.findall(check.expression))
    return list(dict.fromkeys([*names_of(frame.code), *guarded_names(frame.tree), *checked]))


def _checks(checks: Sequence[Check]) -> tuple[image_format.Check, ...]:
    return tuple(_check(check) for check in checks if not about_compiler(check.expression))


def _check(check: Check) -> image_format.Check:
    return image_format.Check(check.expression, check.subject, marshal.dumps(check.expected))
