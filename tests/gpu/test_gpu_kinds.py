"""By hand on a GPU machine: kinds of compiled code that are no Inductor wrappers."""

from __future__ import annotations

import pytest

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
        def aoti():
            return spec(output="aoti", dynamic_shapes={"x": {0: torch.export.Dim("rows", max=64)}})
    """,
    "preheat.toml": """
        targets = ["net.warm:eager", "net.warm:aot_eager", "net.warm:regional", "net.warm:aoti"]
        device = "cuda"
    """,
}
FORMS = [
    ("eager", "lean"),
    ("eager", "dynamo"),
    ("aot_eager", "lean"),
    ("aot_eager", "dynamo"),
    ("regional", "dynamo"),
    ("aoti", "lean"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    made = Project(tmp_path_factory.mktemp("kinds") / "project", FILES)
    made.preheat("warm", "--json")
    return made


@pytest.mark.parametrize(("target", "form"), FORMS)
def test_a_kind_is_loaded_in_a_fresh_process_and_agrees_with_eager(
    project: Project, target: str, form: str
) -> None:
    script = f"""
        import json, torch, preheat
        from net import model

        module = model.Perceptron().cuda().eval()
        x = torch.randn(8, 64, device="cuda")
        with torch.no_grad():
            loaded = preheat.load({target!r}, module, form={form!r}, on_miss="error")
            right = torch.allclose(loaded(x), module(x), atol=1e-4)
            module.first.weight.mul_(2)
            followed = torch.allclose(loaded(x), module(x), atol=1e-4)
        print(json.dumps([right, followed, loaded.preheat.misses]))
    """
    done = project.python(script)
    assert done.code == 0, done.err
    assert done.json() == [True, True, 0]
