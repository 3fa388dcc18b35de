"""Programs of many kinds from build to worker; the whole list is in ``docs/lean.md``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from support.capture import Case, Result, all_cases, run_cases

if TYPE_CHECKING:
    from pathlib import Path

CHOSEN = (
    "c08_partial",
    "c14_gb_in_local_fn",
    "c18_namedtuple",
    "c20_mark_dynamic",
    "c24_grad_modes",
    "c33_custom_op",
    "c36_flex_attention",
    "c37_cond",
    "c38_tensor_subclass",
    "c46_backend_eager",
    "c47_backend_aot_eager",
    "c48_decorator_at_import",
    "c50_regional_inplace",
    "c53_monkeypatched_forward",
    "c54_exec_source",
    "c54b_exec_source_linecache",
    "c61_vmap",
    "c63_parametrize_weightnorm",
)
REFUSED = {
    "c26_optimizer_compiled": "static addresses",
}

# Two programs that differ where a careless package, or a cache key, would not look; and programs that
# are loaded for another one than they were built for.
PROJECT = """
import functools
import types

import torch
from torch import nn

import preheat


def sine(x):
    return x.sin()


def cosine(x):
    return x.cos()


def branch_on_sine(p, x):
    return torch.cond(p, sine, cosine, (x,))


def branch_on_cosine(p, x):
    return torch.cond(p, cosine, sine, (x,))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Thrice(Twice):
    @staticmethod
    def backward(ctx, g):
        return g * 3


def twice(x):
    return Twice.apply(x) * 5


def thrice(x):
    return Thrice.apply(x) * 5


def plus(factor, x):
    return x + factor


def minus(factor, x):
    return x - factor


def doubled(self, x):
    return nn.functional.linear(x, self.weight) * 2


def halved(self, x):
    return nn.functional.linear(x, self.weight) / 2


def typed(x):
    y = x + 1
    return y * 2 if type(y) is torch.Tensor else y


def patched(forward):
    module = nn.Linear(4, 4, bias=False)
    module.forward = types.MethodType(forward, module)
    return module


def made_by_exec(factor):
    names = {}
    exec(f"def made(x):\\n    return x * {factor}\\n", names)
    return names["made"]


def parametrized(how):
    return how(nn.Linear(4, 4))


def spec(fn, *example, **options):
    return preheat.Spec(fn, examples=[example], **options)


X = torch.linspace(0, 1, 4)


@preheat.target
def branches__sine():
    return spec(branch_on_sine, torch.tensor(True), X)


@preheat.target
def branches__cosine():
    return spec(branch_on_cosine, torch.tensor(True), X)


@preheat.target
def formulas__twice():
    return spec(twice, X.clone().requires_grad_(), backward=True)


@preheat.target
def formulas__thrice():
    return spec(thrice, X.clone().requires_grad_(), backward=True)


@preheat.target
def types_asked():
    return spec(typed, X)


@preheat.target
def partial():
    return spec(functools.partial(plus, 3.0), X)


def use_partial(load):
    return [
        load("partial", functools.partial(plus, 3.0))(X),
        load("partial", functools.partial(minus, 3.0))(X),
        load("partial", functools.partial(plus, 4.0))(X),
    ]


@preheat.target
def replaced():
    return spec(patched(doubled), X)


def use_replaced(load):
    return load("replaced", patched(halved))(X)


@preheat.target
def made():
    return spec(made_by_exec(2.0), X)


def use_made(load):
    return load("made", made_by_exec(3.0))(X)


@preheat.target
def normed():
    return spec(parametrized(nn.utils.parametrizations.weight_norm), X)


def use_normed(load):
    with torch.no_grad():
        return load("normed", parametrized(nn.utils.parametrizations.spectral_norm).eval())(X)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> dict[str, Result]:
    cases = [case for case in all_cases() if case.name in (*CHOSEN, *REFUSED)]
    return run(cases, tmp_path_factory.mktemp("capture"), caches)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> dict[str, Result]:
    project = tmp_path_factory.mktemp("others")
    (project / "cases").mkdir()
    (project / "cases" / "others.py").write_text(textwrap.dedent(PROJECT))
    return run(all_cases(project), project / "kept", caches, project=project)


def run(cases: list[Case], kept: Path, caches: Path, **options: Path) -> dict[str, Result]:
    found = run_cases(cases, caches=caches / "capture", keep=kept, **options)
    return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_program_is_built_and_loaded_and_agrees_with_eager(
    results: dict[str, Result], name: str
) -> None:
    result = results[name]
    assert result.word == "right", result.reason
    assert (result.form, result.frames_compiled, result.added) == ("lean", 0, ())


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_cannot_be_packaged_is_refused_with_a_reason(
    results: dict[str, Result], name: str
) -> None:
    assert results[name].word == "refused"
    assert results[name].reason.startswith("refused: ")
    assert REFUSED[name] in results[name].reason


def test_a_program_may_ask_for_the_type_of_a_tensor(others: dict[str, Result]) -> None:
    # Dynamo makes torch a global of the program's module, under a name of its own, for the guard.
    assert others["types_asked"].word == "right", others["types_asked"].reason


@pytest.mark.parametrize("name", ["branches", "formulas"])
def test_programs_that_differ_only_inside_of_an_operator_stay_apart(
    others: dict[str, Result], name: str
) -> None:
    assert others[name].word == "right", others[name].reason


@pytest.mark.parametrize("name", ["partial", "replaced", "made", "normed"])
def test_a_package_is_not_used_for_another_program(others: dict[str, Result], name: str) -> None:
    assert others[name].word in ("compiled", "refused"), others[name]
    assert "process:" not in others[name].reason
    assert "build" not in others[name].reason


def test_every_case_is_listed_once() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names)) == 100
