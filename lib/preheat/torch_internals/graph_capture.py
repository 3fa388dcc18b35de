"""Build side: what Inductor and AOTAutograd made of each graph, as parts that a lean image can hold."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from preheat.errors import RefusedError
from preheat.image.surroundings import Surroundings
from preheat.image.values import UnportableError
from preheat.kinds.interface import Made
from preheat.kinds.registry import is_custom, of_backend
from preheat.torch_internals.cuda_graph_checks import captured
from preheat.torch_internals.patching import replaced
from preheat.torch_internals.surrounding import surroundings_of
from preheat.torch_internals.traced_source import write_traced
from preheat.torch_internals.training import training_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from preheat.image.surroundings import Training
    from preheat.torch_internals.traced_source import TracedSource


@dataclasses.dataclass
class CompiledGraph:
    """One generated module and what belongs to it; ``scope`` are its globals once executed."""

    backward: bool
    source: str
    scope: dict[str, Any]
    constants: dict[str, Any]
    frozen: bool
    torchbind: tuple[str, ...]
    aligned: tuple[int, ...]
    mutated: tuple[int, ...]
    captured: tuple[int, ...] | None
    devices: tuple[int, ...]


@dataclasses.dataclass
class TracedGraph:
    """One graph that was traced and not compiled."""

    kind: str
    backward: bool
    source: TracedSource
    frozen: bool = False

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        return self.source.constants


@dataclasses.dataclass
class CustomGraph:
    """One graph of a backend that another distribution brings: ``data`` is what it was serialized to."""

    kind: str
    data: bytes
    backward: bool = False
    frozen: bool = False

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        return {}


AnyGraph: TypeAlias = CompiledGraph | TracedGraph | CustomGraph


@dataclasses.dataclass
class BackendCall:
    """Everything that one call of the backend made."""

    graphs: list[AnyGraph] = dataclasses.field(default_factory=list)
    surroundings: list[Surroundings] = dataclasses.field(default_factory=list)
    training: Training | None = None
    arguments: tuple[int, ...] = ()
    refusals: list[str] = dataclasses.field(default_factory=list)


class GraphRecorder:
    """Records what the backend makes while it listens; ``take`` hands over the last call's.

    ``installed``: the globals that Dynamo gave to user modules for its bytecode and guards. ``inputs``: where
    the last traced graph takes its inputs from, each with its value.
    """

    def __init__(self) -> None:
        self.installed: dict[str, Any] = {}
        self.inputs: list[tuple[str, Any]] = []
        self._open: list[BackendCall] = []
        self._last: BackendCall | None = None

    def take(self) -> BackendCall | None:
        """The parts of the backend call that ended last; None when there was none since."""
        last, self._last = self._last, None
        return last

    def recording(self, backend: str, original: Any) -> Any:
        """The backend to compile with. Inductor is listened to; the others are called from here."""
        if backend == "eager":
            return self._eager
        if backend == "aot_eager":
            return self._aot_eager
        if backend == "regional_inductor":
            return self._regional
        return self._custom(backend, original) if is_custom(backend) else original

    def _eager(self, graph: Any, inputs: Any, **options: Any) -> Any:
        """What torch's backend of this name does, with a record of the graph."""
        self._last = BackendCall(surroundings=[Surroundings()])
        self._traced(self._last, "eager", graph, backward=False)
        self.inputs = list(_inputs(graph))
        return graph.forward

    def _aot_eager(self, graph: Any, inputs: Any, **options: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager, boxed_nop

        call = BackendCall()
        self._open.append(call)

        def compiler(backward: bool) -> Callable[[Any, Any], Any]:
            def compile_graph(traced: Any, example_inputs: Any) -> Any:
                run = boxed_nop(traced, example_inputs)
                self._traced(call, "aot_eager", traced, backward)
                return run

            return compile_graph

        try:
            return aot_eager(graph, inputs, fw_compiler=compiler(False), bw_compiler=compiler(True))
        finally:
            self._last = self._open.pop()

    def _regional(self, graph: Any, inputs: Any, **options: Any) -> Any:
        from preheat.torch_internals.regional import regional_backend

        self._open.append(BackendCall())
        try:
            return regional_backend(graph, inputs)
        finally:
            self._last = self._open.pop()
            self._last.refusals = ["regions of a graph were compiled on their own"]

    def _custom(self, name: str, original: Any) -> Any:
        run = torch._dynamo.lookup_backend(name) if isinstance(original, str) else original
        kind = of_backend(name)

        def backend(graph: Any, inputs: Any) -> Any:
            compiled = run(graph, inputs)
            call = self._last = BackendCall(surroundings=[Surroundings()])
            try:
                made = Made(name, name, call, compiled)
                call.graphs.append(CustomGraph(kind.name, kind.write(kind.prepare(made))))
            except RefusedError as error:
                call.refusals.append(error.message)
            return compiled

        return backend

    def _traced(self, call: BackendCall, kind: str, graph: Any, backward: bool) -> None:
        try:
            call.graphs.append(TracedGraph(kind, backward, write_traced(graph)))
        except UnportableError as error:
            call.refusals.append(str(error))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record inside the block."""
        from torch._dynamo.output_graph import OutputGraph
        from torch._functorch._aot_autograd import runtime_wrappers as wrappers
        from torch._inductor.output_code import CompiledFxGraph

        hooks: list[tuple[Any, str, Callable[[Any], Any]]] = [
            (OutputGraph, "install_global_unsafe", self._global),
            (torch._TorchCompileInductorWrapper, "__call__", self._backend),
            (CompiledFxGraph, "post_compile", self._graph),
            (wrappers.RuntimeWrapper, "post_compile", self._runtime),
            (wrappers.AOTDispatchSubclassWrapper, "post_compile", self._subclass),
            (wrappers.FunctionalizedRngRuntimeWrapper, "post_compile", self._random),
            (wrappers.AOTDedupeWrapper, "post_compile", self._repeated),
            (wrappers.AOTSyntheticBaseWrapper, "post_compile", self._overlapping),
            (wrappers.EffectTokensWrapper, "post_compile", self._tokens),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, make in hooks:
                stack.enter_context(replaced(owner, name, make(vars(owner)[name])))
            training = wrappers.AOTDispatchAutograd
            original = vars(training)["post_compile"].__func__

            def autograd(*args: Any, **kwargs: Any) -> Any:
                self._trained(args, kwargs)
                return original(*args, **kwargs)

            stack.enter_context(replaced(training, "post_compile", staticmethod(autograd)))
            yield

    def _refuse(self, why: str) -> None:
        if self._open:
            self._open[-1].refusals.append(why)

    def _trained(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward graph and its backward graph become one function of autograd's."""
        if not self._open:
            return
        try:
            self._open[-1].training = training_of(args, kwargs)
        except UnportableError as error:
            self._refuse(str(error))

    def _global(self, original: Any) -> Any:
        def install_global(graph: Any, name: str, value: Any) -> Any:
            self.installed[name] = value
            return original(graph, name, value)

        return install_global

    def _backend(self, original: Any) -> Any:
        def call(backend: Any, *args: Any, **kwargs: Any) -> Any:
            self._open.append(BackendCall())
            try:
                return original(backend, *args, **kwargs)
            finally:
                self._last = self._open.pop()

        return call

    def _graph(self, original: Any) -> Any:
        def post_compile(graph: Any, inputs: Any, constants: Any, options: Any) -> Any:
            if self._open:
                self._open[-1].graphs.append(_compiled_graph(graph, constants, options))
            return original(graph, inputs, constants, options)

        return post_compile

    def _runtime(self, original: Any) -> Any:
        def post_compile(wrapper: Any, compiled: Any, config: Any, *, runtime_metadata: Any) -> Any:
            if self._open:
                try:
                    keep = config.keep_inference_input_mutations
                    made = surroundings_of(runtime_metadata, wrapper.disable_amp, keep)
                    self._open[-1].surroundings.append(made)
                except UnportableError as error:
                    self._refuse(str(error))
            return original(wrapper, compiled, config, runtime_metadata=runtime_metadata)

        return post_compile

    def _subclass(self, original: Any) -> Any:
        return self._refusing(
            original,
            lambda wrapper, _: wrapper.maybe_subclass_meta is not None,
            "it takes or returns a tensor subclass",
        )

    def _random(self, original: Any) -> Any:
        return self._refusing(
            original,
            lambda _, metadata: metadata.is_rng_op_functionalized,
            "its random numbers are drawn by a functional generator",
        )

    def _overlapping(self, original: Any) -> Any:
        return self._refusing(
            original,
            lambda wrapper, _: wrapper.needs_post_compile,
            "inputs that are changed in place overlap in memory",
        )

    def _tokens(self, original: Any) -> Any:
        return self._refusing(
            original, lambda _, metadata: bool(metadata.tokens), "it orders side effects by tokens"
        )

    def _repeated(self, original: Any) -> Any:
        def post_compile(wrapper: Any, compiled: Any, config: Any, *, runtime_metadata: Any) -> Any:
            if self._open and wrapper.needs_post_compile:
                mask = wrapper.keep_arg_mask
                self._open[-1].arguments = tuple(i for i, kept in enumerate(mask) if kept)
            return original(wrapper, compiled, config, runtime_metadata=runtime_metadata)

        return post_compile

    def _refusing(self, original: Any, applies: Callable[[Any, Any], bool], why: str) -> Any:
        def post_compile(wrapper: Any, compiled: Any, config: Any, *, runtime_metadata: Any) -> Any:
            if self._open and applies(wrapper, runtime_metadata):
                self._refuse(why)
            return original(wrapper, compiled, config, runtime_metadata=runtime_metadata)

        return post_compile


def _inputs(graph: Any) -> Iterator[tuple[str, Any]]:
    for node in graph.graph.find_nodes(op="placeholder"):
        given = node.meta.get("grapharg")
        if given is not None:
            yield _name_of(given.source), given.example


def _name_of(source: Any) -> str:
    # A method up to torch 2.11, a property later.
    name = source.name
    return str(name() if callable(name) else name)


def _compiled_graph(graph: Any, constants: Any, options: Any) -> CompiledGraph:
    import torch._inductor.config as inductor_config

    entry = graph.current_callable
    function = getattr(entry, "__func__", entry)
    backward = bool(graph.fx_kwargs["is_backward"])
    return CompiledGraph(
        backward=backward,
        source=graph.source_code,
        scope=getattr(function, "__globals__", {}),
        constants=dict(constants.unwrap(graph)),
        # With freezing, every constant may have been computed from parameters.
        frozen=bool(graph.frozen_param_names or inductor_config.freezing),
        torchbind=tuple(graph.torchbind_constants),
        aligned=tuple(graph.inputs_to_check),
        mutated=tuple(sorted(graph.mutated_input_idxs)),
        captured=captured(graph, options),
        devices=tuple(sorted(graph.device_idxs)),
    )
