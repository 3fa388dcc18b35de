"""By hand on a GPU machine: steps of loading Inductor's wrapper that only a GPU shows, in both forms.

Each program is right; and where a step can be left out, its check fails without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.gpu import TOGETHER, Warming, needed, needs, warming

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.project import Project

pytestmark = pytest.mark.gpu

FILES = {
    "net/__init__.py": "",
    "net/model.py": """
        import torch
        from torch import nn


        def changed(x):
            x.add_(1)
            return x.sin() * 2


        def in_parts(x):
            y = x.sin() * 2
            z = (y.cpu() + 1).to(x.device)
            return z.cos() * y


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(64, 128)
                self.last = nn.Linear(128, 64)

            def forward(self, x):
                return self.last(self.first(x).relu()).softmax(-1)


        def expanded(x):
            return x.sin() * 2


        def sized(x, k):
            return x.sin() * k
    """,
    "net/warm.py": """
        import preheat
        import torch

        from net import model


        def spec(fn, *args, **options):
            return preheat.Spec(fn, examples=[args], grad=False, **options)


        @preheat.target
        def changed():
            return spec(model.changed, torch.randn(4096, device="cuda"))


        @preheat.target
        def in_parts():
            x = torch.randn(64, 64, device="cuda")
            return spec(model.in_parts, x, mode="reduce-overhead")


        @preheat.target
        def trained():
            torch.manual_seed(0)
            return preheat.Spec(
                model.Net().cuda(),
                examples=[(torch.randn(16, 64, device="cuda"),)],
                backward=True,
                mode="reduce-overhead",
            )


        @preheat.target
        def expanded():
            x = torch.randn(64, 1, device="cuda").expand(64, 32)
            return spec(model.expanded, x, mode="reduce-overhead")


        @preheat.target
        def sized():
            x = torch.randn(64, 32, device="cuda")
            return preheat.Spec(
                model.sized, examples=[(x, 2), (x, 3)], grad=False, dynamic=True,
                mode="reduce-overhead",
            )
    """,
    "preheat.toml": """
        targets = [
            "net.warm:changed", "net.warm:in_parts", "net.warm:trained", "net.warm:expanded",
            "net.warm:sized",
        ]
        device = "cuda"
    """
    + TOGETHER,
}

START = """
    import importlib, json, sys, torch, preheat
    from net import model

    name, form, without = {name!r}, {form!r}, {without!r}


    def load(fn):
        return preheat.load(name, fn, on_miss="error", form=form)


    def leave_out(place, value):
        module, _, path = place.partition(":")
        owner = importlib.import_module(module)
        *inner, last = path.split(".")
        for part in inner:
            owner = getattr(owner, part)
        assert hasattr(owner, last), place
        setattr(owner, last, value)


    def same(got, wanted):
        torch.cuda.synchronize()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


    def random(*shape):
        return torch.randn(*shape, device="cuda")
"""

LEFT_OUT = {
    ("changed", "lean"): """
    leave_out("preheat.image.graphs:_with_aligned_inputs", lambda compiled, *_: compiled)
""",
    ("changed", "dynamo"): """
    leave_out("torch._inductor.output_code:maybe_realign_inputs", lambda *_: None)
""",
    ("bundle", "dynamo"): """
    leave_out("torch._inductor.triton_bundler:TritonBundler.read_and_emit", lambda bundle: None)
""",
    ("in_parts", "dynamo"): """
    from torch._inductor.output_code import CompiledFxGraph

    post_compile = CompiledFxGraph.post_compile

    def without_partitions(graph, *args):
        graph.recursively_apply_fns = None
        return post_compile(graph, *args)

    leave_out("torch._inductor.output_code:CompiledFxGraph.post_compile", without_partitions)
""",
}

CHECKS = {
    # An input that begins at no multiple of 16 bytes and is changed in place.
    "changed": """
    loaded = load(model.changed)
    x = random(4097)[1:]
    other = x.clone()
    assert x.data_ptr() % 16
    same(loaded(x), model.changed(other))
    same(x, other)
""",
    # The kernels come from the package: Triton compiles nothing, with empty caches.
    "bundle": """
    compiled = []
    if form == "dynamo":
        from triton.compiler.compiler import ASTSource

        make_ir = ASTSource.make_ir
        ASTSource.make_ir = lambda *args, **kwargs: compiled.append(1) or make_ir(*args, **kwargs)
    loaded = load(model.changed)
    x = random(4096)
    other = x.clone()
    same(loaded(x), model.changed(other))
    assert form == "dynamo" or "triton" not in sys.modules
    assert not compiled, "Triton compiled a kernel"
""",
    # Operations on the CPU in the middle: several partitions, or none that is captured.
    "in_parts": """
    loaded = load(model.in_parts)
    with torch.no_grad():
        for _ in range(6):
            x = random(64, 64)
            got = loaded(x).clone()
            same(got, model.in_parts(x))
    assert loaded.preheat.misses == 0
""",
    # A backward pass after a forward pass that may have been captured.
    "trained": """
    import copy

    module = model.Net().cuda()
    other = copy.deepcopy(module)
    loaded = load(module)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (module, other)]
    for _ in range(6):
        x = random(16, 64)
        for optimizer, program in zip(optimizers, (loaded, other)):
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            program(x).square().sum().backward()
            optimizer.step()
        for one, two in zip(module.parameters(), other.parameters()):
            same(one, two)
    assert loaded.preheat.misses == 0
""",
    # Elements of an input share memory: it cannot be copied to a place of its own.
    "expanded": """
    loaded = load(model.expanded)
    with torch.no_grad():
        for _ in range(6):
            x = random(64, 1).expand(64, 32)
            same(loaded(x).clone(), model.expanded(x))
    assert loaded.preheat.misses == 0
""",
    # An input that is no tensor.
    "sized": """
    loaded = load(model.sized)
    with torch.no_grad():
        for number in (2, 3, 2, 4, 4, 4, 3):
            x = random(64, 32)
            same(loaded(x, number).clone(), model.sized(x, number))
    assert loaded.preheat.misses == 0
""",
}
TARGET = {"bundle": "changed"}
FORMS = [(step, form) for step in CHECKS for form in ("lean", "dynamo")]


def marked(pairs: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(*one, marks=needs(TARGET.get(one[0], one[0]))) for one in pairs]


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warming]:
    yield from warming(request, tmp_path_factory, FILES)


@pytest.fixture
def project(request: pytest.FixtureRequest, built: Warming) -> Project:
    return needed(request, built)


def checked(project: Project, directory: Path, step: str, form: str, without: str) -> str:
    """What is wrong; "" when nothing is."""
    target = TARGET.get(step, step)
    lacking = project.manifest(target).without.get(form)
    if lacking is not None:
        pytest.skip(f"{target} has no {form} form on this torch: {lacking}")
    empty = {
        "TORCHINDUCTOR_CACHE_DIR": str(directory),
        "TRITON_CACHE_DIR": str(directory / "triton"),
        # A kernel that is compiled is compiled where it is counted.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    start = START.format(name=target, form=form, without=bool(without))
    done = project.python(start + without + CHECKS[step], env=empty)
    return done.err[-3000:] if done.code else ""


@pytest.mark.parametrize(("step", "form"), marked(FORMS))
def test_a_program_that_needs_the_step_is_right(
    project: Project, tmp_path: Path, step: str, form: str
) -> None:
    assert checked(project, tmp_path, step, form, "") == ""


@pytest.mark.parametrize(("step", "form"), marked(list(LEFT_OUT)))
def test_without_the_step_its_check_fails(
    project: Project, tmp_path: Path, step: str, form: str
) -> None:
    assert checked(project, tmp_path, step, form, LEFT_OUT[step, form]) != ""
