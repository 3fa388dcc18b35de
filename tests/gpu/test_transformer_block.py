"""By hand on a GPU machine: one transformer block, warmed, proven and loaded without compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

FILES = {
    "block/__init__.py": "",
    "block/model.py": """
        import torch
        from torch import nn


        class Block(nn.Module):
            def __init__(self, width=256, heads=4):
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
    """,
    "block/warm.py": """
        import preheat
        import torch

        from block.model import Block


        @preheat.target
        def block():
            torch.manual_seed(0)
            module = Block().eval().to("cuda", torch.float16)
            x = torch.randn(4, 64, 256, device="cuda", dtype=torch.float16)
            return preheat.Spec(module, examples=[(x,)], grad=False)


        @preheat.target
        def training():
            torch.manual_seed(0)
            x = torch.randn(4, 64, 256, device="cuda")
            return preheat.Spec(Block().to("cuda"), examples=[(x,)], backward=True)
    """,
    "preheat.toml": """
        targets = ["block.warm:block", "block.warm:training"]
    """,
}

WORKER = """
    import json, time, torch
    from block.model import Block

    torch.manual_seed(0)
    module = Block().eval().to("cuda", torch.float16)
    x = torch.randn(4, 64, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        wanted = module(x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    import preheat
    loaded = preheat.load("block", module, on_miss="error")
    output = loaded(x)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    report = loaded.preheat
    print(json.dumps({
        "form": report.form, "misses": report.misses, "frames_compiled": report.frames_compiled,
        "load_seconds": report.load_seconds, "load_and_first_call_seconds": seconds,
        "error": float((output - wanted).abs().max()), "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    return Project(tmp_path_factory.mktemp("gpu") / "project", FILES)


def test_a_block_is_warmed_proven_and_loaded(project: Project, tmp_path: Path) -> None:
    warmed = project.preheat("warm", "--json")
    print(warmed.out, warmed.err)  # noqa: T201  the figures are wanted
    assert warmed.code == 0
    for target in warmed.json()["targets"]:
        assert target["proof"]["frames_compiled"] == 0
        assert target["form"] == "lean"
    empty = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    worker = project.python(WORKER, env=empty)
    assert worker.code == 0, worker.err
    report = worker.json()
    print(report)  # noqa: T201
    assert report["form"] == "lean"
    assert report["misses"] == report["frames_compiled"] == 0
    assert report["error"] < 2e-2
