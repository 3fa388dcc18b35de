"""Every private name of torch that lean images use, pinned: when one of these fails, torch has changed.

Each test says in its text which module relies on it. See ``test_torch_contracts`` for the dynamo form.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import sys
from typing import Any

import pytest
import torch

from preheat.image import enumeration, standins
from preheat.image.call_checks import TRAILING
from preheat.torch_internals import guard_tree

CPP: Any = torch._C._dynamo.guards  # type: ignore[attr-defined]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_guard_managers_have_the_accessors_that_are_recorded() -> None:
    """guard_tree.py records them by the name of the argument that says what is reached."""
    for name, key in guard_tree._ACCESSORS.items():
        kinds = [kind for kind in (CPP.GuardManager, CPP.DictGuardManager) if hasattr(kind, name)]
        assert kinds, f"no manager has {name}"
        text = getattr(kinds[0], name).__doc__
        wanted = [*([f"{key}:"] if key else []), "source:", "example_value:", "guard_manager_enum:"]
        places = [text.find(one) for one in wanted]
        assert -1 not in places, f"{name} takes other arguments: {text}"
        assert places == sorted(places), f"{name} takes its arguments in another order: {text}"
    for kind in (CPP.GuardManager, CPP.RootGuardManager):
        assert hasattr(kind, "mark_tag_safe") or kind is CPP.RootGuardManager


def test_no_accessor_is_unknown_to_the_recorder() -> None:
    """An accessor that is not recorded would leave out what hangs below it."""
    known = {*guard_tree._ACCESSORS, "get_manager", "get_child_managers"}
    found = {
        name
        for kind in (CPP.GuardManager, CPP.DictGuardManager, CPP.RootGuardManager)
        for name in dir(kind)
        if name.endswith("_manager") and not name.startswith(("is_", "clone", "_"))
    }
    assert found <= known, f"torch has new accessors: {sorted(found - known)}"


def test_guards_end_with_their_text_and_perhaps_a_stack() -> None:
    """call_checks.py counts what follows a guard's own arguments."""
    assert TRAILING in (1, 2)
    root = CPP.RootGuardManager()
    root.add_lambda_guard(lambda value: True, *(["text"], None)[:TRAILING])
    assert root.check({}) is True
    assert root.check_verbose({}).result is True


def test_relations_between_guards_are_installed_by_functions_of_these_names() -> None:
    """guard_tree.py replaces them where torch's Python module calls them."""
    from torch._dynamo import guards

    for name in guard_tree._RELATIONS:
        assert callable(getattr(guards, name))
        assert callable(getattr(CPP, name))


def test_the_recorder_listens_at_these_methods() -> None:
    """guard_tree.py learns objects, sources and texts from them."""
    from torch._dynamo.guards import CheckFunctionManager, GuardBuilder

    assert parameters(CheckFunctionManager.id_ref) == ["self", "obj", "obj_str"]
    assert parameters(GuardBuilder.get_guard_manager_from_source) == ["self", "source"]
    assert parameters(GuardBuilder.add_python_lambda_leaf_guard_to_root)[:2] == [
        "self",
        "code_parts",
    ]


def test_trees_read_one_enumeration_and_these_settings() -> None:
    """enumeration.py answers for torch._dynamo.guards and torch._dynamo.config."""
    from torch._dynamo import config
    from torch._dynamo.guards import GuardManagerType

    assert issubclass(GuardManagerType, enum.Enum)
    ours = {one.name: one.value for one in enumeration.GuardManagerType}
    assert {one.name: one.value for one in GuardManagerType} == ours
    for name in enumeration.SETTINGS:
        assert isinstance(getattr(config, name), (bool, int)), name


def test_trees_are_built_without_the_compiler_from_these_settings_alone() -> None:
    """A setting that C++ reads besides would import the compiler in every worker."""
    import subprocess

    script = (
        "import sys, torch; sys.path[:0] = sys.argv[1:]\n"
        "from support.images import Loaded, image_of, program\n"
        "x = torch.ones(3)\n"
        "assert torch.equal(Loaded(image_of())(x), program(x))\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler was imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *sys.path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_import_systems_own_lock_can_be_held() -> None:
    """enumeration.py holds it while stand-ins are in place; it may be taken twice by one thread."""
    with enumeration._ModuleLock("some_module"), enumeration._ModuleLock("some_module"):
        pass


def test_global_state_is_json_with_the_thread_count() -> None:
    """guards.py takes the worker's thread count for images without CPU kernels."""
    state = CPP.GlobalStateGuard()
    fields = json.loads(state.__getstate__())
    assert fields["num_threads"] == torch.get_num_threads()
    fields["num_threads"] += 1
    other = CPP.GlobalStateGuard()
    other.__setstate__(json.dumps(fields))
    assert state.check()
    assert not other.check()
    assert "num_threads" in other.reason()


def test_dispatch_keys_have_a_number() -> None:
    """Tensor guards are recorded with it."""
    keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    assert torch._C.DispatchKeySet.from_raw_repr(keys.raw_repr()) == keys


def test_the_frame_hook_answers_with_a_strategy() -> None:
    """nested.py leaves frames to Python with it."""
    eval_frame: Any = torch._C._dynamo.eval_frame
    action = eval_frame._FrameAction.DEFAULT
    eval_frame._FrameExecStrategy(action, action)
    assert eval_frame.set_eval_frame(None) is None


def test_graphs_are_recorded_in_these_hooks() -> None:
    """graph_capture.py wraps them; the order of their arguments counts."""
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch._aot_autograd import runtime_wrappers as wrappers
    from torch._inductor.output_code import CompiledFxGraph

    assert parameters(OutputGraph.install_global_unsafe)[:3] == ["self", "name", "value"]
    assert parameters(CompiledFxGraph.post_compile) == [
        "self",
        "example_inputs",
        "constants",
        "graph_kwargs",
    ]
    for name in (
        "RuntimeWrapper",
        "AOTDispatchSubclassWrapper",
        "FunctionalizedRngRuntimeWrapper",
        "AOTDedupeWrapper",
        "AOTSyntheticBaseWrapper",
        "EffectTokensWrapper",
    ):
        found = parameters(getattr(wrappers, name).post_compile)
        assert found == ["self", "compiled_fn", "aot_config", "runtime_metadata"], name
    assert isinstance(vars(wrappers.AOTDispatchAutograd)["post_compile"], staticmethod)
    fields = {field.name for field in dataclasses.fields(CompiledFxGraph)}
    assert {
        "source_code",
        "current_callable",
        "frozen_param_names",
        "torchbind_constants",
        "inputs_to_check",
        "mutated_input_idxs",
        "device_idxs",
    } <= fields


def test_no_kind_of_output_is_unknown() -> None:
    """graph_capture.py has a rule, or refuses, for each."""
    from torch._functorch._aot_autograd.schemas import OutputType

    assert {one.name for one in OutputType} == {
        "non_alias",
        "alias_of_input",
        "is_input",
        "alias_of_intermediate",
        "alias_of_intermediate_save_as_output",
        "alias_of_intermediate_base_is_user_output",
        "unsafe_view_alias",
        "custom_function_view",
    }


def test_what_surrounds_a_graph_is_told_by_these_fields() -> None:
    """graph_capture.py reads them of AOTAutograd's metadata."""
    from torch._functorch._aot_autograd.schemas import InputAliasInfo, ViewAndMutationMeta

    fields = {field.name for field in dataclasses.fields(ViewAndMutationMeta)}
    names = {*fields, *vars(ViewAndMutationMeta), *_assigned(ViewAndMutationMeta)}
    assert {
        "tokens",
        "input_info",
        "output_info",
        "num_outputs_aliased",
        "grad_enabled_mutation",
        "is_rng_op_functionalized",
        "mutated_inp_runtime_indices",
        "mutated_graph_handled_indices_seen_by_autograd",
    } <= names
    assert {"is_leaf", "mutates_data", "mutates_metadata", "mutates_storage_metadata"} <= {
        field.name for field in dataclasses.fields(InputAliasInfo)
    }


def test_what_joins_two_passes_is_told_by_these_fields() -> None:
    """torch_internals/training.py reads them; torch 2.11 hands the parts over one by one."""
    from torch._functorch._aot_autograd import runtime_wrappers, schemas

    from preheat.torch_internals import training

    joined = parameters(runtime_wrappers.AOTDispatchAutograd.post_compile)
    if len(joined) == 1:
        spec: Any = runtime_wrappers.AOTDispatchAutogradCompileSpec
        given = {field.name for field in dataclasses.fields(spec)}
        assert {*training._POSITIONS, "fw_metadata"} <= given
    else:
        assert {name: joined.index(name) for name in training._POSITIONS} == training._POSITIONS
        assert "fw_metadata" in joined
    metadata = schemas.ViewAndMutationMeta
    names = {field.name for field in dataclasses.fields(metadata)}
    names |= {*vars(metadata), *_assigned(metadata)}
    assert {
        "num_forward_returns",
        "num_tensors_saved_with_no_vc_check",
        "num_symints_saved_for_bw",
        "num_opaque_objects_saved_for_bw",
        "num_graphsafe_rng_states",
        "num_backward_tokens",
        "num_unsafe_view_outputs",
        "unsafe_view_out_indices",
        "aliased_out_indices",
        "num_intermediate_bases",
        "subclass_tangent_meta",
        "deterministic",
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    } <= names
    assert callable(runtime_wrappers._should_disable_saved_tensors_hooks)
    layout = {field.name for field in dataclasses.fields(schemas.MemoryFormatMeta)}
    assert layout == {"size", "stride", "memory_format"}


def test_autograd_functions_can_do_what_joined_passes_need() -> None:
    """image/training.py uses these on the context of a function and around its call."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx._materialize_non_diff_grads = False
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            assert len(ctx.saved_tensors) == 1
            ctx.maybe_clear_saved_tensors()
            return gradient

    x = torch.ones(2, requires_grad=True)
    Function.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert torch._C._functorch.peek_interpreter_stack() is None
    before = torch._C._is_view_replay_enabled()
    torch._C._set_view_replay_enabled(True)
    assert torch._C._is_view_replay_enabled()
    torch._C._set_view_replay_enabled(before)


def test_the_backward_pass_is_compiled_with_these_settings() -> None:
    """capture.py patches them."""
    import torch._functorch.config as config

    assert isinstance(config.force_non_lazy_backward_lowering, bool)
    assert isinstance(config.donated_buffer, bool)


def test_kernels_get_short_names() -> None:
    """triton_kernels.py cuts what this function gives; Triton itself cuts file names at 150."""
    import torch._inductor.codegen.triton as codegen

    from preheat.torch_internals import triton_kernels

    assert len("triton_poi__1000") + triton_kernels._LONGEST_NAME < 150
    original = codegen.get_fused_kernel_name
    assert parameters(original) == ["node_schedule", "descriptive_names"]
    assert "get_fused_kernel_name(" in inspect.getsource(codegen.TritonScheduling.define_kernel)
    codegen.get_fused_kernel_name = lambda *args: "fused_" + "x" * 400
    try:
        with triton_kernels._short_names():
            assert len(codegen.get_fused_kernel_name([], "torch")) == triton_kernels._LONGEST_NAME
    finally:
        codegen.get_fused_kernel_name = original


def _assigned(kind: type) -> set[str]:
    text = inspect.getsource(kind.__post_init__)  # type: ignore[attr-defined]
    return {part.split()[0].rstrip(":") for part in text.split("self.")[1:]}


@pytest.mark.parametrize("module", standins.MODULES)
def test_stand_ins_stand_for_what_is_there(module: str) -> None:
    """standins.py: a name that torch no longer has would hide what replaced it."""
    real = importlib.import_module(module)
    optional = {"_get_error_on_graph_break", "_set_error_on_graph_break", "set_getitem"}
    missing = [name for name in standins.MODULES[module] if not hasattr(real, name)]
    assert set(missing) <= optional, missing


def test_stand_ins_give_the_same_results() -> None:
    """standins.py, against the functions that they stand for."""
    from torch._dynamo import utils
    from torch._inductor import utils as inductor_utils

    ours, x = standins.MODULES["torch._dynamo.utils"], torch.ones(2, 3).t()
    rest = iter((1, 2, 3))
    next(rest)
    for name, args in {
        "call_size": (x, 1),
        "call_stride": (x, 0),
        "call_storage_offset": (x,),
        "dict_getitem": ({"a": 1}, "a"),
        "dict_keys_getitem": ({"a": 1, "b": 2}, 1),
        "list_getitem": ([1, 2], 1),
        "to_numpy_helper": ((),),
        "tuple_iterator_getitem": (rest, 1),
    }.items():
        assert ours[name](*args) == getattr(utils, name)(*args), name
    assert ours["make_cell"](3).cell_contents == utils.make_cell(3).cell_contents
    for size in (0, 1, 63, 64, 65, 1000):
        assert standins.WRAPPER["align"](size) == (size + 63) // 64 * 64
    assert inductor_utils.ALIGN_BYTES == 64
    a, b = torch.randn(4, 3), torch.randn(3, 5)
    from torch._inductor.kernel.mm import bias_addmm

    for bias in (torch.randn(4, 5), torch.randn(1, 5), torch.randn(5).expand(4, 5)):
        assert torch.equal(standins.WRAPPER["bias_addmm"](bias, a, b), bias_addmm(bias, a, b))


def test_guard_expressions_use_names_that_have_helpers() -> None:
    """standins.py: a name that torch's expressions use and workers lack refuses programs."""
    from torch._dynamo.guards import _get_closure_vars

    optional = {name for name in _get_closure_vars() if name.startswith(("___key_to", "__numpy"))}
    known = {*standins.guard_helpers(), *optional}
    unknown = {name for name in _get_closure_vars() if name.startswith("___")} - known
    assert len(unknown) <= 12, f"guard expressions may use {sorted(unknown)}"


def test_kernels_are_launched_by_a_class_of_c() -> None:
    """triton.py; a torch without CUDA has no such class."""
    launcher = getattr(torch._C, "_StaticCudaLauncher", None)
    assert (launcher is not None) >= (torch.version.cuda is not None)
    if launcher is not None:
        assert callable(launcher._load_kernel)
        assert callable(launcher._launch_kernel)
