"""Every private name of torch that preheat uses, pinned: when one of these fails, torch has changed.

Each test says in its name what preheat relies on; the module that relies on it is named in the text.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import subprocess
import sys
import types

import pytest
import torch

from preheat.errors import UnsupportedVersionError
from preheat.torch_internals import versions
from preheat.torch_internals.graph_cache import graphs_found_again
from preheat.torch_internals.identifiers import first_identifier, identifiers_from


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_this_torch_is_one_that_is_known() -> None:
    assert versions.FIRST <= versions.torch_version() <= versions.LAST


@pytest.mark.parametrize("text", ["", "nightly", "two.three"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedVersionError):
        versions.parse(text)


def test_identifiers_count_from_one_module_global() -> None:
    """identifiers.py replaces the counter that names resume functions."""
    from torch._dynamo import bytecode_transformation

    assert isinstance(bytecode_transformation._unique_id_counter, itertools.count)
    with identifiers_from(70):
        assert bytecode_transformation.unique_id("name") == "name_70"
        assert bytecode_transformation.unique_id("name") == "name_71"


def cache_key(backend: str | None, **more: bool) -> object:
    """What AOTAutograd's cache makes of a graph's configuration."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler
    from torch._functorch._aot_autograd.schemas import AOTConfig

    config = AOTConfig(
        fw_compiler=None,
        bw_compiler=None,
        partition_fn=None,
        decompositions={},
        num_params_buffers=0,
        aot_id=0,
        keep_inference_input_mutations=more.get("keep_inference_input_mutations", False),
        precompile_backend_id=backend,
    )
    pickler = AOTAutogradCachePickler(torch.fx.GraphModule({}, torch.fx.Graph()))
    return pickler.get_hash(config)


def test_the_name_of_a_graph_is_part_of_its_cache_key_unless_that_is_replaced() -> None:
    """graph_cache.py leaves it out, and nothing else. Should torch do so by itself, it can go."""
    assert cache_key("__compiled_fn_1") != cache_key("__compiled_fn_2")
    with graphs_found_again():
        assert cache_key("__compiled_fn_1") == cache_key("__compiled_fn_2")
        other = cache_key("__compiled_fn_1", keep_inference_input_mutations=True)
        assert cache_key("__compiled_fn_1") != other
    assert cache_key("__compiled_fn_1") != cache_key("__compiled_fn_2")


def test_identifiers_of_targets_are_far_apart() -> None:
    starts = {first_identifier(f"target {n}", "environment") for n in range(2000)}
    assert len(starts) == 2000
    ordered = sorted(starts)
    assert min(b - a for a, b in itertools.pairwise(ordered)) >= 1 << 24
    assert first_identifier("t", "e") == first_identifier("t", "e")


def test_the_collector_has_the_methods_that_capture_corrects() -> None:
    """capture.py subclasses CompilePackage."""
    from torch._dynamo.package import CompilePackage

    assert parameters(CompilePackage.add_guarded_code) == ["self", "guards_state", "dynamo_code"]
    assert parameters(CompilePackage.add_inlined_source) == ["self", "sources"]
    assert parameters(CompilePackage.add_backend_id) == ["self", "backend_id", "backend"]
    assert parameters(CompilePackage.bypass_current_entry) == ["self"]
    package = CompilePackage(test_this_torch_is_one_that_is_known)
    (entry,) = package._codes.values()
    assert {"python_module", "import_sources", "guarded_codes", "bypassed", "code_source"} <= {
        field.name for field in dataclasses.fields(entry)
    }


def test_guards_are_filtered_through_names_that_the_recorder_replaces() -> None:
    """guards.py listens to filter entries and adds its own checks before guards are finished."""
    from torch._dynamo import guards

    assert parameters(guards.make_guard_filter_entry) == ["guard", "builder"]
    assert parameters(guards.CheckFunctionManager.compile_check_fn)[:2] == ["self", "builder"]
    assert "___from_numpy" in guards._get_closure_vars()
    root = torch._C._dynamo.guards.RootGuardManager
    assert hasattr(root, "add_epilogue_lambda_guard")


def test_guards_are_pickled_by_names_that_are_replaced() -> None:
    """guard_states.py adds custom operators, and makes a failure no failure of the program."""
    from torch._dynamo import exc, guards

    assert parameters(guards.GuardsStatePickler.reducer_override) == ["self", "obj"]
    assert "GuardsStatePickler(" in inspect.getsource(guards.pickle_guards_state)
    assert "pickle_guards_state(" in inspect.getsource(guards.CheckFunctionManager.serialize_guards)
    assert issubclass(exc.PackageError, Exception)


def test_custom_operators_are_found_by_name_and_say_what_was_registered() -> None:
    """guard_states.py and fingerprints.py."""
    from torch._library.custom_ops import OPDEFS

    from preheat.image.fingerprints import fingerprint

    @torch.library.custom_op("preheat_contract::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert OPDEFS["preheat_contract::twice"] is twice
    seen = [fingerprint(twice)]

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    seen.append(fingerprint(twice))
    twice.register_autograd(
        lambda ctx, grad: grad * 2, setup_context=lambda ctx, inputs, output: None
    )
    seen.append(fingerprint(twice))
    assert None not in seen
    assert len(set(seen)) == 3


def test_parts_of_functions_after_a_break_are_named_alike() -> None:
    """capture.py leaves them out of what was traced: they are in no file."""
    from torch._dynamo import resume_execution

    name = "torch_dynamo_resume_in_f_at_7"
    assert name.startswith(resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX)


def test_loading_guards_takes_state_code_and_globals() -> None:
    """install.py rebuilds guard trees with torch's own functions."""
    from torch._dynamo import package

    assert parameters(package.load_guard_manager)[:3] == [
        "guards_state",
        "target_code",
        "runtime_global_scope",
    ]
    assert parameters(package.load_guards_state) == ["guards_state"]


def test_entries_are_loaded_and_listed_per_code_object() -> None:
    """installed.py and nested.py load them, and dispatch.py lists them; test_installed calls them."""
    from torch._C._dynamo import eval_frame

    def fresh() -> None: ...

    assert callable(eval_frame._load_precompile_entry)
    assert eval_frame._debug_get_precompile_entries(fresh.__code__) == []


def test_code_objects_survive_torchs_own_container() -> None:
    """payload.py stores code as SerializedCode."""
    from torch._dynamo.package import SerializedCode

    code = test_code_objects_survive_torchs_own_container.__code__
    again = SerializedCode.to_code_object(SerializedCode.from_code_object(code))
    assert isinstance(again, types.CodeType)
    assert again.co_code == code.co_code


def test_misses_reach_the_frame_converter_after_torchs_own_filter() -> None:
    """dispatch.py stands in for the frame converter."""
    from torch._dynamo import convert_frame
    from torch._dynamo.eval_frame import _optimize_catch_errors
    from torch._dynamo.hooks import Hooks
    from torch._dynamo.types import ConvertFrameReturn

    assert parameters(_optimize_catch_errors)[:2] == ["compile_fn", "hooks"]
    assert "dynamic" in parameters(_optimize_catch_errors)
    assert ConvertFrameReturn(apply_to_code=False).guarded_code is None
    assert parameters(convert_frame.convert_frame)[:2] == ["compiler_fn", "hooks"]
    assert parameters(convert_frame.convert_frame_assert)[0] == "compiler_fn"
    assert callable(convert_frame.has_tensor_in_frame)
    seen = []

    def converter(frame: object, *_: object, **__: object) -> ConvertFrameReturn:
        seen.append(frame.f_code.co_name)  # type: ignore[attr-defined]
        return ConvertFrameReturn(apply_to_code=False)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    context = _optimize_catch_errors(converter, Hooks())  # type: ignore[arg-type]
    assert torch.equal(context(program)(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == ["program"]


def test_kernels_are_asked_for_through_one_class_method() -> None:
    """kernels.py answers requests for C++ kernels."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    assert isinstance(vars(CppPythonBindingsCodeCache)["load_pybinding_async"], classmethod)
    names = parameters(CppPythonBindingsCodeCache.load_pybinding_async)
    assert names[:2] == ["argtypes", "main_code"]
    assert "submit_fn" in names
    assert CppPythonBindingsCodeCache.entry_function == "kernel"
    assert isinstance(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr, int)


def test_generated_modules_are_restored_in_one_method() -> None:
    """wrappers.py executes them from memory."""
    from torch._inductor.output_code import CompiledFxGraph

    assert parameters(CompiledFxGraph.after_deserialization) == ["self", "constants"]
    fields = {field.name for field in dataclasses.fields(CompiledFxGraph)}
    assert {"source_code", "cache_key", "current_callable"} <= fields


def test_artifacts_are_found_by_backend_name() -> None:
    """capture.py takes each graph's artifact by the global name that the bytecode calls."""
    import torch._functorch.config as functorch_config
    from torch._dynamo.precompile_context import PrecompileContext

    assert functorch_config.bundled_autograd_cache is False
    assert PrecompileContext.serialize_artifact_by_key("no such backend") is None


def test_options_lead_to_torchs_own_backend_objects() -> None:
    """options.py makes what torch.compile would make."""
    wrapper = torch._TorchCompileInductorWrapper("default", {"max_autotune": True}, None)
    assert wrapper.config == {"max_autotune": True}


def test_configuration_says_what_the_user_changed() -> None:
    """configuration.py reads which entries differ from their defaults."""
    import torch._inductor.config as inductor_config

    from preheat.torch_internals.configuration import changed_configuration

    before = changed_configuration()
    with inductor_config.patch(max_autotune=not inductor_config.max_autotune):
        after = changed_configuration()
    assert before != after
    assert any("max_autotune" in name for name in after)


def test_compiled_graphs_are_counted_by_torch() -> None:
    """counters.py is the proof's second opinion."""
    from preheat.torch_internals.counters import graphs_compiled

    before = graphs_compiled()
    torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
    assert graphs_compiled() == before + 1


def test_a_source_of_defaults_survives_pickling() -> None:
    """guards.py mends what torch 2.11 writes and cannot read."""
    import pickle

    from torch._dynamo.source import DefaultsSource, LocalSource

    from preheat.torch_internals.guards import GuardRecorder, source_name

    source = DefaultsSource(LocalSource("f"), 0)
    with GuardRecorder().listening():
        again = pickle.loads(pickle.dumps(source))  # noqa: S301  made here
    assert source_name(again) == source_name(source)


def test_guards_are_saved_by_a_pickler_that_can_be_replaced() -> None:
    """guard_states.py subclasses it and says why saving fails."""
    from torch._dynamo import guards

    assert parameters(guards.pickle_guards_state) == ["state", "builder"]
    assert "GuardsStatePickler(" in inspect.getsource(guards.pickle_guards_state)
    assert "pickle_guards_state(" in inspect.getsource(guards.CheckFunctionManager.serialize_guards)
    assert {"_unpickle_module", "_unpickle_bound_method"} <= set(vars(guards.GuardsStatePickler))


def test_custom_operators_are_listed_by_name() -> None:
    """guard_states.py saves one by its name."""
    from torch._library.custom_ops import OPDEFS

    operator = torch.library.custom_op("preheat_contracts::same", mutates_args=())(same)
    assert OPDEFS[operator._qualname] is operator


def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def test_sources_register_with_a_trace_while_they_are_loaded() -> None:
    """guard_states.py gives them one that is thrown away."""
    import pickle

    from torch._dynamo.source import ImportSource

    from preheat.torch_internals.guard_states import loading_guards

    with loading_guards():
        source = ImportSource("torch")
        assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301  made here


def test_globals_among_the_constants_of_bytecode_are_looked_up_in_the_worker() -> None:
    """constants.py names what Dynamo puts there."""
    import importlib
    import pickle

    from torch._dynamo.package import SerializedCode

    from preheat.torch_internals.constants import live, portable

    code = same.__code__.replace(co_consts=(globals(), 1, {"__name__": "another"}))
    outer = same.__code__.replace(co_consts=(code,))
    saved = pickle.dumps(portable(SerializedCode.from_code_object(outer)))
    again = live(pickle.loads(saved), importlib.import_module)  # noqa: S301  made here
    (inner,) = SerializedCode.to_code_object(again).co_consts
    assert inner.co_consts[0] is globals()
    assert inner.co_consts[1:] == (1, {"__name__": "another"})


def test_what_was_compiled_leads_to_its_original() -> None:
    """programs.py takes a program without the torch.compile around it."""
    from preheat.torch_internals.programs import uncompiled

    module = torch.nn.Linear(2, 2)
    assert uncompiled(torch.compile(same, backend="eager")) is same
    assert uncompiled(torch.compile(module, backend="eager")) is module
    assert uncompiled(module) is module
    assert uncompiled(same) is same


def test_compilers_settings_that_capture_changes_are_there() -> None:
    """capture.py lets torch package more than it does by itself."""
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    assert functorch_config.autograd_cache_allow_custom_autograd_functions is False
    assert functorch_config.force_non_lazy_backward_lowering is False
    assert inductor_config.unsafe_marked_cacheable_functions == {}


PREPARED = """
import os
from preheat.torch_internals.compiler import prepare_compiler
prepare_compiler()
from torch._inductor import cpu_vec_isa
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad
for asked in (cpu_vec_isa.valid_vec_isa_list, joint_graph.lazy_init, post_grad.lazy_init, pre_grad.lazy_init):
    assert asked.cache_info().currsize, asked
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_prepared_compiler_has_found_out_what_it_asks_and_has_no_threads() -> None:
    """compiler.py: a zygote that had a thread could not fork; one that forgot would save nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARED],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_a_graph_is_written_as_a_function_with_its_globals() -> None:
    """traced_source.py keeps the text and the names of ``python_code``."""
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    written = graph.graph.python_code("self")
    assert "def forward(self" in written.src
    assert isinstance(written.globals, dict)
    assert isinstance(torch.fx.graph._BoxedCodeGen, type)


def test_the_backend_aot_eager_takes_compilers() -> None:
    """graph_capture.py hands it its own, which call ``boxed_nop``."""
    from torch._dynamo.backends import debugging

    assert {"fw_compiler", "bw_compiler"} <= set(parameters(debugging.aot_eager))
    assert parameters(debugging.boxed_nop) == ["fx_g", "example_inputs"]


def test_libraries_are_loaded_and_bound_by_these_names() -> None:
    """image/library.py calls them; the C++ side takes arguments by position."""
    runner: type = torch._C._aoti.AOTIModelContainerRunnerCpu
    for name in ("run", "update_constant_buffer", "get_constant_names_to_original_fqns"):
        assert callable(getattr(runner, name))
    assert "bool" in str(runner.update_constant_buffer.__doc__)


def test_libraries_are_compiled_with_these_settings() -> None:
    """aoti_capture.py: without them small parameters are written into the code, or weights are packaged."""
    import torch._inductor.config as config

    for name in (
        "package",
        "package_constants_in_so",
        "package_constants_on_disk_format",
        "output_path",
        "embed_kernel_binary",
    ):
        assert hasattr(config.aot_inductor, name)
    assert hasattr(config, "always_keep_tensor_constants")


def test_exports_say_what_each_argument_and_result_is() -> None:
    """aoti_code.py and aoti_writer.py read the signature."""
    from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

    assert {"USER_INPUT", "PARAMETER", "BUFFER", "CONSTANT_TENSOR"} <= set(InputKind.__members__)
    assert "USER_OUTPUT" in OutputKind.__members__
    assert [one.name for one in dataclasses.fields(TensorArgument)] == ["name"]
    assert [one.name for one in dataclasses.fields(ConstantArgument)] == ["name", "value"]


def test_regional_graphs_hold_their_regions_under_this_name() -> None:
    """regional.py looks for it in the bytes, and calls torch's own pass."""
    from torch._inductor.output_code import RegionalOutputCode
    from torch.fx import _graph_pickler
    from torch.fx.passes.regional_inductor import regional_inductor

    from preheat.torch_internals.regional import _COMPILED_REGION

    assert hasattr(_graph_pickler, _COMPILED_REGION.decode())
    assert "_serialized_graph_module" in RegionalOutputCode.__annotations__
    assert parameters(regional_inductor) == ["gm", "example_args"]
