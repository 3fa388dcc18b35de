"""Build side: run a program under ``torch.compile`` and keep everything that Dynamo made of it.

torch's own ``CompilePackage`` collects codes, guards and resume functions; what it does wrong or
leaves out is corrected here (each correction says why), and what cannot be corrected is refused.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.package import CompilePackage, SerializedCode
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX

from preheat.errors import RefusedError
from preheat.image.modes import current_modes
from preheat.kinds.interface import Made
from preheat.kinds.registry import of_backend
from preheat.sources.digest import code_digest
from preheat.torch_internals import triton_kernels
from preheat.torch_internals.bypasses import BypassLog
from preheat.torch_internals.constants import portable
from preheat.torch_internals.graph_cache import graphs_found_again
from preheat.torch_internals.graph_capture import GraphRecorder
from preheat.torch_internals.guard_states import not_saved, saving_guards
from preheat.torch_internals.guard_tree import GuardTree, GuardTreeRecorder
from preheat.torch_internals.guards import GuardRecorder, freezing
from preheat.torch_internals.identifiers import identifiers_from
from preheat.torch_internals.image_writer import Frame, ImageWriter, WrittenImage
from preheat.torch_internals.kernels import KernelRecorder
from preheat.torch_internals.options import options_of
from preheat.torch_internals.patching import replaced
from preheat.torch_internals.payload import (
    FORMAT,
    OF_NO_MODULE,
    CodeRecord,
    Payload,
    StoredCode,
    Variant,
)
from preheat.torch_internals.programs import callable_with_code, entry_function
from preheat.torch_internals.triton_kernels import TritonRecorder
from preheat.torch_internals.versions import torch_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preheat.spec import Spec
    from preheat.torch_internals.graph_capture import BackendCall

_RECOMPILE_LIMIT = 64
# Globals that Dynamo installs and that have no portable meaning, with what a person did to get them.
_UNPORTABLE_GLOBALS = {
    "__gen_rand_values": "it calls Python's random module",
    "__warnings_warn_wrapper": "it warns between two graphs",
    "___unnamed_scope": "it inlines a function whose globals belong to no module",
}
# A class of tensors with ``__torch_function__``: outputs are made of it again.


class _Package(CompilePackage):
    """torch's collector, corrected."""

    def __init__(self, fn: Any, target: Any, guards: GuardRecorder, graphs: GraphRecorder) -> None:
        self.guard_recorder = guards
        self.graph_recorder = graphs
        self.triton = TritonRecorder()
        self.image = ImageWriter(target, self.triton)
        self.bypasses: dict[str, str] = {}
        self.refusals: list[str] = []
        self.traced: dict[types.CodeType, None] = {}
        self._pending_backends: list[str] = []
        self.made: dict[str, tuple[BackendCall | None, Any]] = {}
        self.variants: dict[types.CodeType, list[Variant]] = {}
        super().__init__(fn)

    def initialize(self, fn: Any, *args: Any, **kwargs: Any) -> None:
        super().initialize(fn, *args, **kwargs)
        # functools.wraps rewrites __module__; names are looked up where the code really lives.
        main = next(iter(self._codes.values()))
        innermost: Any = self._innermost_fn
        self._main_globals = innermost.__globals__
        name = self._main_globals.get("__name__")
        is_module = vars(sys.modules[name]) is self._main_globals if name in sys.modules else False
        main.python_module = name if is_module else OF_NO_MODULE

    def add_backend_id(self, backend_id: str, backend: Any | None = None) -> None:
        super().add_backend_id(backend_id, backend)
        self._pending_backends.append(backend_id)
        call = self.graph_recorder.take()
        self.made[backend_id] = (call, backend)
        self.image.add_graph(backend_id, call)

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        entry = self._current_entry
        frame = self.guard_recorder.take()
        backends, self._pending_backends = tuple(self._pending_backends), []
        if entry is None:
            return
        self.refusals += frame.refusals
        entry.import_sources.update(frame.installed_globals)
        self._name_installed_globals(entry, dynamo_code)
        original = next(code for code, known in self._codes.items() if known is entry)
        modes = current_modes()
        self.image.add_frame(
            original,
            Frame(
                tree=frame.tree or GuardTree(refusals=["no guards were built"]),
                code=dynamo_code,
                scope=self.scope_of(entry),
                installed=self.graph_recorder.installed,
                modes=modes,
                backends=backends,
                call_checks=tuple(frame.call_checks.values()),
                load_checks=tuple(frame.load_checks.values()),
            ),
        )
        if not guards_state:
            self.bypasses[original.co_qualname] = f"its guards cannot be saved: {not_saved()}"
        if entry.bypassed or not guards_state:
            return
        self.variants.setdefault(original, []).append(
            Variant(
                guards=guards_state,
                code=portable(SerializedCode.from_code_object(dynamo_code)),
                modes=modes,
                backends=backends,
                call_checks=tuple(frame.call_checks.values()),
                load_checks=tuple(frame.load_checks.values()),
                recorded_values=tuple(frame.recorded_values.values()),
            )
        )

    def scope_of(self, entry: Any) -> dict[str, Any]:
        """The globals that an entry's code runs in."""
        if entry.python_module == OF_NO_MODULE:
            scope: dict[str, Any] = self._main_globals
            return scope
        return vars(sys.modules[entry.python_module])

    def add_inlined_source(self, sources: list[types.CodeType]) -> None:
        # torch hashes the file's text here, which may be newer than the code that was traced. Parts of
        # a function after a graph break are in no file: the function itself counts.
        parts = TORCH_DYNAMO_RESUME_IN_PREFIX
        self.traced.update(
            dict.fromkeys(code for code in sources if not code.co_name.startswith(parts))
        )

    def bypass_current_entry(self) -> None:
        entry = self._current_entry
        super().bypass_current_entry()
        if entry is not None:
            name = entry.python_code.co_qualname or entry.python_code.co_name
            self.bypasses[name] = BypassLog.last or "torch gives no reason"

    def _name_installed_globals(self, entry: Any, code: types.CodeType) -> None:
        """Find globals that the bytecode needs and torch does not record."""
        scope = self.scope_of(entry)
        for name in _global_names(code):
            value = scope.get(name)
            if isinstance(value, types.ModuleType) and name in self.graph_recorder.installed:
                entry.import_sources[name] = value.__name__
            for prefix, why in _UNPORTABLE_GLOBALS.items():
                if name.startswith(prefix):
                    self.refusals.append(f"{code.co_qualname}: {why}")


@contextlib.contextmanager
def _frozen_parameters() -> Iterator[None]:
    """Let graphs hold parameters where those are frozen: the lean form has digests of them.

    Their dynamo form is refused all the same, with the reason of AOTAutograd's cache.
    """
    from torch._dynamo.output_graph import OutputGraph

    if not freezing():
        yield
        return
    original: Any = OutputGraph.bypass_package

    def bypass_package(graph: Any, reason: str = "", **kwargs: Any) -> None:
        if not reason.startswith("Graph contains named parameters"):
            original(graph, reason, **kwargs)

    with replaced(OutputGraph, "bypass_package", bypass_package):
        yield


def _packageable() -> dict[str, str]:
    """Operators over graphs that torch caches only when told to: the graphs are part of its keys."""
    import torch._inductor.config as inductor_config

    names = ("cond", "while_loop", "associative_scan")
    ours = {f"torch.ops.higher_order.{name}": "graphs are part of the key" for name in names}
    return {**ours, **inductor_config.unsafe_marked_cacheable_functions}


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


class Capture:
    """One program, compiled call by call; ``finish()`` gives the dynamo form.

    Use ``compiled`` inside ``with capture.active():`` for every example.
    """

    def __init__(self, spec: Spec, first_identifier: int) -> None:
        torch_version()
        self._spec = spec
        self._first_identifier = first_identifier
        self._trees = GuardTreeRecorder()
        self._guards = GuardRecorder(self._trees, spec.fn if spec.backend == "inductor" else None)
        self._graphs = GraphRecorder()
        self._kernels = KernelRecorder()
        self._options = options_of(spec)
        program = callable_with_code(spec.fn)
        self._main = entry_function(program)
        self._package = _Package(self._main, spec.fn, self._guards, self._graphs)
        self.compiled: Callable[..., Any] = torch._dynamo.optimize(
            backend=self._graphs.recording(spec.backend, self._options.backend_object()),
            nopython=spec.fullgraph,
            dynamic=spec.dynamic,
            guard_filter_fn=self._guards,
            package=self._package,
        )(program)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Everything that must be in place while the program compiles. Enter it once."""
        import torch._functorch.config as functorch_config
        import torch._inductor.config as inductor_config

        with (
            identifiers_from(self._first_identifier),
            # The marks of regions are no part of the cache's keys.
            graphs_found_again() if self._spec.backend == "inductor" else contextlib.nullcontext(),
            _frozen_parameters() if self._spec.backend == "inductor" else contextlib.nullcontext(),
            functorch_config.patch(
                bundled_autograd_cache=True,
                autograd_cache_allow_custom_autograd_functions=True,
                # The backward graph is part of the package, whether or not the pass runs here.
                force_non_lazy_backward_lowering=self._spec.grad_enabled,
                # A backward graph that overwrites what was kept for it fails with retain_graph=True.
                donated_buffer=False,
            ),
            inductor_config.patch(unsafe_marked_cacheable_functions=_packageable()),
            torch._dynamo.config.patch(
                recompile_limit=max(_RECOMPILE_LIMIT, 2 * len(self._spec.examples)),
                record_runtime_overhead=False,
                # By default hooks that are added to a child later do not run.
                skip_nnmodule_hook_guards=False,
            ),
            torch.compiler.set_stance("default"),
            self._trees.listening(),
            self._guards.listening(),
            self._graphs.listening(),
            saving_guards(),
            self._kernels.listening(),
            self._package.triton.listening(),
            inductor_config.patch(triton_kernels.settings()),
            BypassLog().listening(),
        ):
            yield

    def payload(self) -> Payload:
        """The dynamo form.

        Raises ``RefusedError`` with every reason at once when a part of the program cannot be
        packaged.
        """
        package = self._package
        refusals = [f"{name}: {why}" for name, why in package.bypasses.items()]
        refusals += package.refusals
        backends = self._backends(refusals)
        records = [
            self._record(code, entry)
            for code, entry in package._codes.items()
            if not entry.bypassed
        ]
        if refusals:
            raise RefusedError(
                "torch.compile works for this program, but a package of it would not: "
                + "; ".join(dict.fromkeys(refusals))
                + "."
            )
        if not any(record.variants for record in records):
            raise RefusedError(
                "Nothing was compiled: no example led to a graph.",
                remedy="A program without tensor operations, or one that Dynamo leaves to Python as "
                "a whole, gains nothing from a package.",
            )
        return Payload(
            format=FORMAT,
            torch=torch.__version__,
            codes=tuple(records),
            backends=backends,
            options=self._options,
        )

    def image(self) -> WrittenImage:
        """The lean form, or why there is none."""
        units = [(code, self._record(code, entry)) for code, entry in self._package._codes.items()]
        refusals = tuple(dict.fromkeys(self._package.refusals))
        return self._package.image.write(units, self._kernels.libraries(), refusals)

    def kernels(self) -> dict[str, str]:
        """Paths of the kernel libraries by request digest."""
        return self._kernels.libraries()

    def traced(self) -> list[types.CodeType]:
        """All code objects that were traced."""
        return [self._main.__code__, *self._package.traced]

    def graphs(self) -> int:
        """How many graphs were compiled."""
        return self._package.image.graph_count()

    def _backends(self, refusals: list[str]) -> dict[str, StoredCode]:
        stored: dict[str, StoredCode] = {}
        for name in dict.fromkeys(
            name
            for variants in self._package.variants.values()
            for variant in variants
            for name in variant.backends
        ):
            try:
                kind = of_backend(self._spec.backend)
                made = Made(name, self._spec.backend, *self._package.made[name])
                stored[name] = StoredCode(kind.name, kind.write(kind.prepare(made)))
            except RefusedError as error:
                refusals.append(error.message)
        return stored

    def _record(self, code: types.CodeType, entry: Any) -> CodeRecord:
        return CodeRecord(
            code=portable(entry.python_code),
            digest=code_digest(code),
            module=entry.python_module,
            names=tuple(dict.fromkeys(entry.function_names)),
            source=entry.code_source,
            resume=entry.install_to_global,
            imports=tuple(sorted(entry.import_sources.items())),
            variants=tuple(self._package.variants.get(code, ())),
        )
