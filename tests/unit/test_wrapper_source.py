"""Generated modules, reduced to what a worker runs; what a worker would not have is refused by name."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from preheat.image.standins import WRAPPER
from preheat.image.values import UnportableError, decode
from preheat.torch_internals.wrapper_source import DEVICE_INDEX, Wrapper, reduce

HEADER = """
# AOT ID: ['0_inference']
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
from torch._inductor.codegen.memory_planning import _align as align
aten = torch.ops.aten
inductor_ops = torch.ops.inductor
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
_tensor_constant0 = None  # device(type='cpu')
async_compile = AsyncCompile()

cpp_fused_0 = async_compile.cpp_pybinding(['const float*'], '''int main() {}''')
cpp_fused_1 = async_compile.cpp_pybinding([], '''unused''')

async_compile.wait(globals())
del async_compile

"""
FOOTER = """

def get_args():
    from torch._dynamo.testing import rand_strided
    return []


def benchmark_compiled_module(args, times=10, repeat=10):
    from torch._inductor.utils import print_performance
    return print_performance(lambda: call(args))


if __name__ == "__main__":
    from torch._inductor.wrapper_benchmark import compiled_module_main
    compiled_module_main('None', benchmark_compiled_module)
"""


def reduced(body: str, **more: Any) -> Wrapper:
    import torch._inductor.codegen.memory_planning as planning
    from torch._inductor.select_algorithm import extern_kernels

    scope: dict[str, Any] = {
        "torch": torch,
        "aten": torch.ops.aten,
        "inductor_ops": torch.ops.inductor,
        "extern_kernels": extern_kernels,
        "align": planning._align,
        "empty_strided_cpu": torch._C._dynamo.guards._empty_strided_cpu,  # type: ignore[attr-defined]
        "cpp_fused_0": lambda *args: None,
        "_tensor_constant0": torch.ones(2),
        **more,
    }
    return reduce(HEADER + body + FOOTER, scope, ["_tensor_constant0"])


def executed(wrapper: Wrapper, **more: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {
        **{name: decode(value) for name, value in wrapper.names},
        **{name: WRAPPER[standin] for name, standin in wrapper.standins},
        **more,
    }
    exec(wrapper.code, scope)  # noqa: S102
    return scope


def test_functions_stay_and_header_kernels_and_benchmarks_go() -> None:
    wrapper = reduced(
        "def call(args):\n    x, = args\n    cpp_fused_0(x)\n    return (aten.sin(x),)\n"
    )
    assert wrapper.kernels == ("cpp_fused_0",)
    assert wrapper.standins == ()
    assert {name for name, _ in wrapper.names} == {"torch"}
    called: list[Any] = []
    scope = executed(wrapper, cpp_fused_0=called.append)
    assert "get_args" not in scope
    assert "benchmark_compiled_module" not in scope
    x = torch.ones(2)
    assert torch.equal(scope["call"]([x])[0], x.sin())
    assert called == [x]


def test_library_kernels_are_named_directly_and_helpers_are_stand_ins() -> None:
    wrapper = reduced(
        "def call(args):\n"
        "    x, y = args\n"
        "    buf = empty_strided_cpu((2, 2), (2, 1), torch.float32)\n"
        "    extern_kernels.mm(x, y, out=buf)\n"
        "    return (buf, align(65), _tensor_constant0)\n"
    )
    assert dict(wrapper.standins) == {"align": "align"}
    assert "_preheat_extern_mm" in dict(wrapper.names)
    constant, x = torch.ones(2), torch.randn(2, 2)
    result = executed(wrapper, _tensor_constant0=constant)["call"]([x, x])
    assert torch.equal(result[0], x @ x)
    assert result[1] == 128
    assert result[2] is constant


def test_the_gpus_number_is_the_workers() -> None:
    wrapper = reduced(
        "def call(args):\n"
        "    with torch.cuda._DeviceGuard(0):\n"
        "        torch.cuda.set_device(0)\n"
        "        a = torch.device(type='cuda', index=0)\n"
        "        b = aten.ones(2, device='cuda:0')\n"
        "        c = aten.full([0], 0, device='cpu')\n"
    )
    function = next(c for c in wrapper.code.co_consts if isinstance(c, types.CodeType))
    import dis

    loads = [one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL"]
    assert loads.count(DEVICE_INDEX) == 4
    assert "cuda:0" not in function.co_consts
    assert "cpu" in function.co_consts


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def call(args):\n    return no_such_helper(args)\n", "no_such_helper"),
        ("for x in (): pass\ndef call(args): return args\n", "For at its top level"),
        ("with open('x') as f: pass\n", "With at its top level"),
    ],
)
def test_what_a_worker_would_not_have_is_refused_by_name(body: str, said: str) -> None:
    with pytest.raises(UnportableError, match=said):
        reduced(body)


def test_helpers_of_the_compiler_without_stand_in_are_refused() -> None:
    from torch._inductor.runtime.runtime_utils import ceildiv

    with pytest.raises(UnportableError, match=r"'ceildiv' of .*which has no stand-in"):
        reduced("def call(args):\n    return ceildiv(*args)\n", ceildiv=ceildiv)


def test_values_without_a_name_are_refused() -> None:
    with pytest.raises(UnportableError, match="'state'"):
        reduced("def call(args):\n    return state\n", state=object())
