"""By hand on a GPU machine: lean images of GPU programs, and that none of them needs the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


        class Perceptron(nn.Module):
            def __init__(self, width=64):
                super().__init__()
                self.first = nn.Linear(width, 2 * width)
                self.second = nn.Linear(2 * width, width)

            def forward(self, x):
                return self.second(self.first(x).relu()).softmax(-1)


        class Block(nn.Module):
            def __init__(self, width, heads=8):
                super().__init__()
                self.heads = heads
                self.norm1 = nn.LayerNorm(width)
                self.norm2 = nn.LayerNorm(width)
                self.qkv = nn.Linear(width, 3 * width)
                self.out = nn.Linear(width, width)
                self.up = nn.Linear(width, 4 * width)
                self.down = nn.Linear(4 * width, width)

            def forward(self, x):
                batch, length, width = x.shape
                parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
                q, k, v = (
                    p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts
                )
                attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
                return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


        class Transformer(nn.Module):
            def __init__(self, width=512, depth=12):
                super().__init__()
                self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return x


        class Counting(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                return x * self.calls, self.calls + 0


        def filled(x):
            y = torch.full((x.shape[0],), 2.0, device=x.device)
            torch._dynamo.graph_break()
            return (x * y[:, None]).cumsum(0).tanh()


        def at_any_size(x, k):
            return (x * k).softmax(0).sum(-1)
    """,
    "net/kernel.py": """
        import torch
        import triton
        import triton.language as tl


        @triton.autotune([triton.Config({"SIZE": 64}), triton.Config({"SIZE": 128})], key=["n"])
        @triton.jit
        def scale(source, target, n, factor, SIZE: tl.constexpr):
            at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
            value = tl.load(source + at, mask=at < n)
            tl.store(target + at, value * factor, mask=at < n)


        def scaled(x, factor):
            result = torch.empty_like(x)
            scale[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](x, result, x.numel(), factor)
            return result + 1
    """,
    "net/warm.py": """
        import preheat
        import torch

        from net import kernel, model


        @preheat.target
        def perceptron():
            torch.manual_seed(0)
            x = torch.randn(32, 64, device="cuda")
            return preheat.Spec(model.Perceptron().eval().cuda(), examples=[(x,)], grad=False)


        @preheat.target
        def transformer():
            torch.manual_seed(0)
            x = torch.randn(4, 128, 512, device="cuda", dtype=torch.float16)
            module = model.Transformer().eval().to("cuda", torch.float16)
            return preheat.Spec(module, examples=[(x,)], grad=False)


        @preheat.target
        def filled():
            x = torch.randn(16, 8, device="cuda")
            return preheat.Spec(model.filled, examples=[(x,)], grad=False)


        @preheat.target
        def at_any_size():
            examples = [(torch.randn(n, 8, device="cuda"), 2.0) for n in (16, 24)]
            return preheat.Spec(model.at_any_size, examples=examples, grad=False, dynamic=True)


        @preheat.target
        def scaled():
            x = torch.randn(1000, device="cuda")
            return preheat.Spec(kernel.scaled, examples=[(x, 2.5)], grad=False)


        @preheat.target
        def captured():
            torch.manual_seed(0)
            x = torch.randn(32, 64, device="cuda")
            return preheat.Spec(
                model.Perceptron().eval().cuda(), examples=[(x,)], grad=False,
                mode="reduce-overhead",
            )


        @preheat.target
        def uncaptured():
            torch.manual_seed(0)
            x = torch.randn(32, 64, device="cuda")
            return preheat.Spec(
                model.Perceptron().eval().cuda(), examples=[(x,)], grad=False,
                mode="reduce-overhead", cuda_graphs=False,
            )


        @preheat.target
        def trained():
            torch.manual_seed(0)
            x = torch.randn(4, 128, 512, device="cuda")
            return preheat.Spec(model.Transformer(depth=2).cuda(), examples=[(x,)], backward=True)


        @preheat.target
        def dropped():
            torch.manual_seed(0)
            module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).cuda()
            return preheat.Spec(
                module, examples=[(torch.randn(32, 64, device="cuda"),)], backward=True
            )


        @preheat.target
        def counting():
            x = torch.randn(16, device="cuda")
            return preheat.Spec(
                model.Counting().cuda(), examples=[(x,)], grad=False, mode="reduce-overhead"
            )


        @preheat.target
        def tuned():
            x = torch.randn(512, 512, device="cuda", dtype=torch.float16)
            return preheat.Spec(
                torch.nn.Linear(512, 512, device="cuda", dtype=torch.float16).eval(),
                examples=[(x,)], grad=False, mode="max-autotune-no-cudagraphs",
            )
    """,
    "preheat.toml": """
        targets = [
            "net.warm:perceptron", "net.warm:transformer", "net.warm:filled",
            "net.warm:at_any_size", "net.warm:scaled", "net.warm:tuned", "net.warm:captured",
            "net.warm:counting", "net.warm:uncaptured", "net.warm:trained", "net.warm:dropped",
        ]
    """
    + TOGETHER,
}
TARGETS = ("perceptron", "transformer", "filled", "at_any_size", "scaled", "tuned", "captured")

WORKER = """
    import json, sys, time, torch
    import net.warm
    from preheat.exercise import TOLERANCE, compare, exercise, make_spec

    name, device = {name!r}, {device!r}
    torch.cuda.set_device(device)
    spec = make_spec(getattr(net.warm, name), name)
    for index, example in enumerate(spec.calls()):
        example.args = tuple(
            a.to(f"cuda:{{device}}") if isinstance(a, torch.Tensor) else a for a in example.args
        )
    if isinstance(spec.fn, torch.nn.Module):
        spec.fn.to(f"cuda:{{device}}")
    (example, *_) = spec.calls()
    with torch.no_grad():
        wanted = spec.fn(*example.args)
    torch.cuda.synchronize()
    before = frozenset(sys.modules)
    began = time.perf_counter()
    import preheat
    loaded = preheat.load(name, spec.fn, on_miss="error")
    output = loaded(*example.args)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    compiler = ("torch._dynamo", "torch._inductor", "sympy", "triton")
    added = [m for m in set(sys.modules) - before if m.startswith(compiler)]
    def steady(call):
        with torch.no_grad():
            for _ in range(20):
                call(*example.args)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(100):
                call(*example.args)
            torch.cuda.synchronize()
        return (time.perf_counter() - began) * 10
    report = loaded.preheat
    print(json.dumps({{
        "target": name, "form": report.form, "reasons": [str(r) for r in report.reasons],
        "misses": report.misses, "added": len(added), "modules": len(set(sys.modules) - before),
        "load_ms": round(report.load_seconds * 1e3, 2), "import_load_first_call_ms": round(first * 1e3, 2),
        "error": float((output.float() - wanted.float()).abs().max()),
        "lean_ms": round(steady(loaded), 4), "eager_ms": round(steady(spec.fn), 4),
        "compile_ms": round(steady(torch.compile(spec.fn, mode=spec.mode)), 4) if {compiled!r} else None,
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
    }}))
"""


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warming]:
    yield from warming(request, tmp_path_factory, FILES)


@pytest.fixture
def project(request: pytest.FixtureRequest, built: Warming) -> Project:
    return needed(request, built)


def run(project: Project, target: str, directory: Path, device: int = 0) -> Any:
    empty = {
        "TORCHINDUCTOR_CACHE_DIR": str(directory),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }
    compiled = target in ("perceptron", "transformer", "captured")
    script = WORKER.format(name=target, device=device, compiled=compiled)
    worker = project.python(script, env=empty)
    assert worker.code == 0, worker.err
    report = worker.json()
    print(report)  # noqa: T201
    return report


@pytest.mark.parametrize("target", [pytest.param(one, marks=needs(one)) for one in TARGETS])
def test_a_program_is_lean_and_agrees_with_eager(
    project: Project, target: str, tmp_path: Path
) -> None:
    assert project.manifest(target).without == {}
    report = run(project, target, tmp_path)
    assert report["form"] == "lean"
    assert report["misses"] == 0
    assert report["error"] < 2e-2
    if target != "filled":  # it calls into the compiler by itself, to break its graph
        assert report["added"] == 0


CAPTURED = """
    import json, sys, torch, preheat
    import net.warm
    from preheat.exercise import make_spec
    from preheat.image.cuda_graphs import CapturedGraph

    replays = []
    replay = CapturedGraph._replay
    CapturedGraph._replay = lambda *args: replays.append(1) or replay(*args)
    errors = []
    def compare(loaded, module, x):
        got, wanted = loaded(x), module(x)
        errors.append(float((got - wanted).abs().max()))
        return got, wanted
    with torch.no_grad():
        spec = make_spec(net.warm.captured, "captured")
        module = spec.fn
        loaded = preheat.load("captured", module, on_miss="error")
        kept = [compare(loaded, module, torch.randn(32, 64, device="cuda")) for _ in range(5)]
        errors += [float((got - wanted).abs().max()) for got, wanted in kept]
        first = len(replays)
        module.load_state_dict({n: t * 2 for n, t in module.state_dict().items()})
        compare(loaded, module, torch.randn(32, 64, device="cuda"))
        module.first.weight.data = module.first.weight.data.clone() + 1
        for _ in range(3):
            compare(loaded, module, torch.randn(32, 64, device="cuda"))
        with torch.cuda.stream(torch.cuda.Stream()):
            compare(loaded, module, torch.randn(32, 64, device="cuda"))
            torch.cuda.synchronize()
        counting = make_spec(net.warm.counting, "counting").fn
        other = preheat.load("counting", counting, on_miss="error")
        x = torch.ones(16, device="cuda")
        counts = [[float(v.flatten()[0]) for v in other(x)] for _ in range(5)]
    print(json.dumps({
        "form": [loaded.preheat.form, other.preheat.form], "error": max(errors),
        "first": first, "replays": len(replays), "counts": counts,
        "misses": loaded.preheat.misses + other.preheat.misses,
        "compiler": "torch._dynamo" in sys.modules,
    }))
"""


@needs("captured", "counting")
def test_cuda_graphs_are_captured_and_replayed(project: Project) -> None:
    worker = project.python(CAPTURED)
    assert worker.code == 0, worker.err
    report = worker.json()
    print(report)  # noqa: T201
    assert report["form"] == ["lean", "lean"]
    assert report["error"] < 1e-4
    assert report["first"] == 4  # all but the first call
    # A program whose result is a buffer that it changes is never captured: a copy would be none.
    assert report["replays"] == 8
    assert report["counts"] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert report["misses"] == 0
    assert not report["compiler"]


TRAINED = """
    import copy, json, sys, torch, preheat
    from net import model

    def trained(module, x):
        optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.05), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    torch.manual_seed(1)
    module, x = model.Transformer(depth=2).cuda(), torch.randn(4, 128, 512, device="cuda")
    other = copy.deepcopy(module)
    wanted = trained(other, x)  # optimizers import the compiler by themselves
    before = set(sys.modules)
    loaded = preheat.load("trained", module, on_miss="error", form="lean")
    got = trained(loaded, x)
    kept = loaded(x).sum()
    kept.backward(retain_graph=True)
    kept.backward()
    print(json.dumps({
        "form": loaded.preheat.form, "misses": loaded.preheat.misses, "losses": [got, wanted],
        "error": max(abs(a - b) for a, b in zip(got, wanted)),
        "parameters": max(
            float((a - b).abs().max()) for a, b in zip(module.parameters(), other.parameters())
        ),
        "compiler": [
            name for name in set(sys.modules) - before
            if name.startswith(("torch._dynamo", "torch._inductor", "sympy", "triton"))
        ],
    }))
"""


@needs("trained", "dropped")
def test_a_program_is_trained_without_the_compiler(project: Project) -> None:
    worker = project.python(TRAINED)
    assert worker.code == 0, worker.err
    report = worker.json()
    print(report)  # noqa: T201
    assert (report["form"], report["misses"], report["compiler"]) == ("lean", 0, [])
    assert report["error"] < 1e-4
    assert report["parameters"] < 1e-3
    print(project.manifest("dropped").without)  # noqa: T201  which forms dropout has on this torch


@needs("uncaptured")
def test_a_target_is_kept_away_from_cuda_graphs(project: Project) -> None:
    script = """
        import json, torch, preheat
        import net.warm
        from preheat.exercise import make_spec
        from preheat.image import cuda_graphs

        made = []
        torch.cuda.graph = lambda *args: made.append(args)
        spec = make_spec(net.warm.uncaptured, "uncaptured")
        loaded = preheat.load("uncaptured", spec.fn, on_miss="error", form="lean")
        for _ in range(4):
            loaded(torch.randn(32, 64, device="cuda"))
        print(json.dumps([loaded.preheat.misses, len(made)]))
    """
    worker = project.python(script)
    assert worker.code == 0, worker.err
    assert worker.json() == [0, 0]
    assert project.manifest("uncaptured").spec.options["triton.cudagraphs"] is False


@needs("perceptron", "filled", "scaled")
def test_a_package_serves_another_gpu_of_the_same_kind(project: Project, tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    for target in ("perceptron", "filled", "scaled"):
        report = run(project, target, tmp_path, device=1)
        assert (report["form"], report["misses"]) == ("lean", 0)
        assert report["error"] < 2e-2
