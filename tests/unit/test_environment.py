"""The environment, the settings of a process, and what is said about differences."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from preheat.compiler_variables import changes_code, compiler_variables
from preheat.environment import (
    capture,
    capture_settings,
    environment_differences,
    settings_differences,
)
from preheat.manifest import Environment, Gpu, Settings, environment_digest
from preheat.settings import opaque_settings
from preheat.torch_internals.configuration import is_opaque, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def in_process(program: str, **variables: str) -> Any:
    """The JSON that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


SETTINGS = """
import json, sys, msgspec, torch
from preheat.environment import capture_settings
{body}
print(json.dumps({{
    "settings": msgspec.to_builtins(capture_settings()),
    "modules": sorted(name for name in sys.modules if name.startswith("torch._dynamo")),
}}))
"""


def settings_of(body: str, **variables: str) -> dict[str, Any]:
    answer: dict[str, Any] = in_process(SETTINGS.format(body=body), **variables)["settings"]
    return answer


@pytest.fixture
def own_context() -> Iterator[Callable[..., Any]]:
    """Runs a function so that configuration it changes is not seen outside."""
    yield contextvars.copy_context().run


def test_the_cpu_environment_says_nothing_about_gpus() -> None:
    here = capture("cpu")
    assert (here.triton, here.cuda, here.driver, here.gpus) == (None, None, None, ())
    assert here.torch == torch.__version__
    assert here.cpu_count == len(os.sched_getaffinity(0))
    assert here == capture("cpu")
    assert environment_digest(here) == environment_digest(capture("cpu"))
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="tpu"):
        capture("tpu")


@pytest.mark.parametrize(
    "name",
    [
        *("CXX", "OMP_NUM_THREADS", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHDYNAMO_DISABLE"),
        *("TORCH_COMPILE_DISABLE", "ATEN_CPU_CAPABILITY", "TORCHINDUCTOR_OF_THE_FUTURE"),
        *("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", "TORCHINDUCTOR_CUTLASS_DIR"),
    ],
)
def test_variables_that_change_code(name: str) -> None:
    assert changes_code(name, "cpu")
    assert changes_code(name, "cuda")


@pytest.mark.parametrize(
    "name", ["TRITON_PTXAS_PATH", "NVIDIA_TF32_OVERRIDE", "TRITON_OVERRIDE_DIR"]
)
def test_variables_that_change_code_for_gpus_alone(name: str) -> None:
    assert not changes_code(name, "cpu")
    assert changes_code(name, "cuda")


@pytest.mark.parametrize(
    "name",
    [
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"),
        *("TORCHINDUCTOR_WORKER_START", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_REDIS_URL"),
        *("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCH_HOME"),
        *("TORCH_COMPILE_DEBUG_DIR", "TRITON_HOME", "PYTORCH_ALLOC_CONF"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TORCHDYNAMO_VERBOSE", "PATH", "TMPDIR"),
        *("AWS_SECRET_ACCESS_KEY", "TORCHINDUCTOR_API_TOKEN"),
    ],
)
def test_variables_that_do_not_change_code(name: str) -> None:
    assert not changes_code(name, "cpu")
    assert not changes_code(name, "cuda")


def test_variables_are_sorted_and_kept_with_their_values() -> None:
    environ = {"OMP_NUM_THREADS": "4", "HOME": "/home", "CXX": "g++"}
    assert list(compiler_variables(environ, "cpu").items()) == [
        ("CXX", "g++"),
        ("OMP_NUM_THREADS", "4"),
    ]


def environment(**changes: Any) -> Environment:
    base = Environment(
        python="CPython 3.11.2",
        abi="cpython-311",
        platform="linux-x86_64",
        torch="2.13.0",
        torch_git="abc",
        triton=None,
        cuda=None,
        driver=None,
        device="cuda",
        gpus=(),
        cpu_isa="AVX2 abc",
        cpu_count=8,
        variables={"CXX": "g++"},
    )
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "symbol", "detail"),
    [
        ({"torch": "2.12.0"}, "torch", "built with 2.13.0, here 2.12.0"),
        ({"cpu_count": 4}, "cpu_count", "built with 8, here 4"),
        ({"driver": "550.54"}, "driver", "built with nothing, here 550.54"),
        (
            {"gpus": (Gpu(name="H200", capability="9.0"),)},
            "gpus",
            "built with nothing, here H200 (9.0)",
        ),
        ({"variables": {}}, "variables.CXX", "built with g++, here nothing"),
        (
            {"variables": {"CXX": "g++", "MKL_CBWR": "AVX2"}},
            "variables.MKL_CBWR",
            "built with nothing, here AVX2",
        ),
    ],
)
def test_differences_name_field_and_values(
    changes: dict[str, Any], symbol: str, detail: str
) -> None:
    assert environment_differences(environment(), environment()) == ()
    (reason,) = environment_differences(environment(), environment(**changes))
    assert (reason.kind, reason.symbol, reason.detail) == ("environment_differs", symbol, detail)


def test_settings_of_a_fresh_process_are_empty_and_import_no_compiler() -> None:
    answer = in_process(SETTINGS.format(body=""))
    assert answer["settings"]["configuration"] == {}
    assert answer["settings"]["default_dtype"] == "torch.float32"
    assert answer["modules"] == []


def test_settings_do_not_depend_on_whether_the_compiler_is_imported() -> None:
    body = "import torch._dynamo, torch._inductor.config, torch._functorch.config"
    variables = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_FREEZING": "1"}
    assert settings_of(body, **variables) == settings_of("", **variables)


def test_settings_that_user_code_changed() -> None:
    found = settings_of(
        """
import torch._inductor.config as inductor
inductor.max_autotune = True
inductor.cpp.threads = 3
inductor.compile_threads = 1
inductor.epilogue_fusion = True
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("high")
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.mkldnn.enabled = False
"""
    )
    assert found["threads"] == 1
    assert found["default_dtype"] == "torch.float64"
    assert found["matmul_precision"] == "high"
    configuration = found["configuration"]
    assert configuration.pop("torch._inductor.config.deterministic", "True") == "True"
    assert configuration == {
        "torch._inductor.config.max_autotune": "True",
        "torch._inductor.config.cpp.threads": "3",
        "torch.use_deterministic_algorithms": "True, warn_only=True",
        "torch.backends.mkldnn.enabled": "False",
    }


def test_matmul_precision_under_a_mix_of_old_and_new_api() -> None:
    body = """
if not hasattr(torch.backends, "fp32_precision"):
    torch.set_float32_matmul_precision("high")
else:
    torch.backends.fp32_precision = "tf32"
"""
    first = settings_of(body)["matmul_precision"]
    assert first == settings_of(body)["matmul_precision"]
    assert first != settings_of("")["matmul_precision"]


def settings(**configuration: str) -> Settings:
    return Settings(
        threads=2,
        default_dtype="torch.float32",
        matmul_precision="highest",
        configuration=configuration,
    )


def test_settings_differences() -> None:
    assert settings_differences(settings(a="1"), settings(a="1")) == ()
    (reason,) = settings_differences(settings(a="1"), settings(a="2"))
    assert (reason.kind, reason.symbol, reason.detail) == (
        "settings_differ",
        "configuration.a",
        "built with 1, here 2",
    )


def test_an_opaque_value_is_never_the_same() -> None:
    opaque = settings(a=text_of(object()))
    assert len(settings_differences(opaque, opaque)) == 1
    assert len(list(opaque_settings(opaque))) == 1


class Pass:
    """A compiler pass that says what it is."""

    def uuid(self) -> str:
        return "my pass, version 3"


def example_pass(graph: object) -> object:
    return graph


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            3,
            1.5,
            "a",
            b"a",
            [1, "a"],
            (1,),
            {"a": [1]},
            {3, 1, 2},
            frozenset(),
            Pass(),
        ),
        *(torch.float32, torch.device("cpu"), example_pass, Pass, [Pass(), example_pass]),
    ],
)
def test_values_with_a_meaning_in_every_process(value: object) -> None:
    text = text_of(value)
    assert not is_opaque(text)
    assert "0x" not in text


def closure(scale: float) -> Callable[[], float]:
    return lambda: scale


@pytest.mark.parametrize("value", [object(), closure(1.0), [object()], {"a": {1: object()}}])
def test_values_without_one(value: object) -> None:
    assert is_opaque(text_of(value))
    assert "0x" not in text_of(value)


def test_values_of_different_types_differ() -> None:
    texts = {text_of(value) for value in (1, True, 1.0, "1", b"1", [1], (1,), {1}, {1: 1})}
    assert len(texts) == 9


def test_configuration_set_to_its_default_is_no_change(
    own_context: Callable[..., Any],
) -> None:
    import torch._inductor.config as inductor

    def read() -> Settings:
        inductor.max_autotune = inductor.max_autotune
        inductor.disabled_passes = ""
        return capture_settings()

    before = capture_settings()
    after = own_context(read)
    assert "torch._inductor.config.max_autotune" not in after.configuration
    assert before.threads == after.threads


def test_the_probe_process() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "preheat.environment"], capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    assert sorted(answer) == ["cpu", "cuda", "default_device", "digests"]
    assert msgspec.convert(answer["cpu"], Environment) == capture("cpu")
    assert answer["digests"]["cpu"] == environment_digest(capture("cpu"))
    if torch.cuda.is_available():
        assert answer["default_device"] == "cuda"
        assert msgspec.convert(answer["cuda"], Environment).gpus
    else:
        assert answer["default_device"] == "cpu"
        assert answer["cuda"] is answer["digests"]["cuda"] is None
