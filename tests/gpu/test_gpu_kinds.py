"""By hand on a GPU machine: kinds of compiled code that are no Inductor wrappers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.gpu import TOGETHER, Warming, needed, needs, warming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.project import Project

pytestmark = pytest.mark.gpu

FILES = {
    "net/__init__.py": "",
    "net/model.py": """
        import torch
        from torch import nn


        class Perceptron(nn.Module):
            def __init__(self, width=64):
                super().__init__()
                self.first = nn.Linear(width, 2 * width)
                self.second = nn.Linear(2 * width, width)

            def forward(self, x):
                y = self.first(x).relu()
                with torch.fx.traceback.annotate({"compile_with_inductor": {}}):
                    y = y.sin() * 2 + y
                return self.second(y).softmax(-1)


        class Layer(nn.Module):
            def __init__(self, width=64):
                super().__init__()
                self.linear = nn.Linear(width, width)

            @torch.compiler.nested_compile_region
            def forward(self, x):
                return self.linear(x).sin() + x


        class Stacked(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Layer() for _ in range(3))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
    """,
    "net/warm.py": """
        import preheat
        import torch

        from net import model


        def spec(**options):
            module = model.Perceptron().cuda().eval()
            x = torch.randn(8, 64, device="cuda")
            return preheat.Spec(module, examples=[(x,)], grad=False, **options)


        @preheat.target
        def eager():
            return spec(backend="eager")


        @preheat.target
        def aot_eager():
            return spec(backend="aot_eager")


        @preheat.target
        def regional():
            return spec(backend="regional_inductor")


        @preheat.target
        def nested():
            module = model.Stacked().cuda().eval()
            return preheat.Spec(
                module, examples=[(torch.randn(8, 64, device="cuda"),)], grad=False
            )


        @preheat.target
        def aoti():
            return spec(output="aoti", dynamic_shapes={"x": {0: torch.export.Dim("rows", max=64)}})
    """,
    "preheat.toml": """
        targets = [
            "net.warm:eager", "net.warm:aot_eager", "net.warm:regional", "net.warm:aoti",
            "net.warm:nested",
        ]
        device = "cuda"
    """
    + TOGETHER,
}
FORMS = [
    ("eager", "lean"),
    ("eager", "dynamo"),
    ("aot_eager", "lean"),
    ("aot_eager", "dynamo"),
    ("regional", "dynamo"),
    ("nested", "lean"),
    ("nested", "dynamo"),
]


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warming]:
    yield from warming(request, tmp_path_factory, FILES)


@pytest.fixture
def project(request: pytest.FixtureRequest, built: Warming) -> Project:
    return needed(request, built)


@pytest.mark.parametrize(
    ("target", "form"), [pytest.param(*one, marks=needs(one[0])) for one in FORMS]
)
def test_a_kind_is_loaded_in_a_fresh_process_and_agrees_with_eager(
    project: Project, target: str, form: str
) -> None:
    script = f"""
        import json, torch, preheat
        from net import model

        module = (model.Stacked if {target!r} == "nested" else model.Perceptron)().cuda().eval()
        x = torch.randn(8, 64, device="cuda")
        with torch.no_grad():
            loaded = preheat.load({target!r}, module, form={form!r}, on_miss="error")
            right = torch.allclose(loaded(x), module(x), atol=1e-4)
            next(module.parameters()).mul_(2)
            followed = torch.allclose(loaded(x), module(x), atol=1e-4)
        print(json.dumps([right, followed, loaded.preheat.misses]))
    """
    done = project.python(script)
    assert done.code == 0, done.err
    assert done.json() == [True, True, 0]


LIBRARY = """
    import json, torch, preheat
    from net import model

    module = model.Perceptron().cuda().eval()
    with torch.no_grad():
        loaded = preheat.load("aoti", module, form="lean", on_miss="error")
        right = []
        for rows in (8, 5):
            x = torch.randn(rows, 64, device="cuda")
            right.append(torch.allclose(loaded(x), module(x), atol=1e-4))
        module.first.weight.mul_(2)
        right.append(torch.allclose(loaded(x), module(x), atol=1e-4))
    print(json.dumps([right, loaded.preheat.misses]))
"""


@pytest.mark.needs("aoti")
def test_a_library_is_right_or_its_target_fails_alone(built: Warming) -> None:
    """torch 2.11's own loader of libraries may end the process; then nothing is published."""
    done = built.done["aoti"].result()
    if done.code:
        assert "SIGSEGV" in done.out + done.err, done.out + done.err
        assert built.project.refs("aoti") == []
        pytest.skip("this torch ends by SIGSEGV while it loads a library")
    worker = built.project.python(LIBRARY)
    assert worker.code == 0, worker.err
    assert worker.json() == [[True, True, True], 0]
