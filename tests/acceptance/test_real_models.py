"""Real models with random weights: warmed, proven, published, and loaded in fresh processes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from support.project import Project

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "models/__init__.py": "",
    "models/torchvision_operators.py": '''
        """timm imports torchvision; its compiled part need not fit the torch under test."""
        import torch

        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            import sys

            for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    ''',
    "models/warm.py": """
        import models.torchvision_operators  # before transformers looks for torchvision
        import preheat
        import torch


        @preheat.target
        def bert():
            from transformers import BertConfig, BertModel

            config = BertConfig(
                hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=128, vocab_size=200,
            )
            example = preheat.Example(
                input_ids=torch.randint(0, 200, (2, 16)),
                attention_mask=torch.ones(2, 16, dtype=torch.long),
            )
            return preheat.Spec(BertModel(config).eval(), examples=[example], grad=False)


        @preheat.target
        def gpt2():
            from transformers import GPT2Config, GPT2LMHeadModel

            config = GPT2Config(
                n_embd=64, n_layer=2, n_head=2, vocab_size=200, n_positions=64,
                bos_token_id=0, eos_token_id=0,
            )
            example = (torch.randint(0, 200, (2, 16)),)
            return preheat.Spec(GPT2LMHeadModel(config).eval(), examples=[example], grad=False)


        @preheat.target
        def vit():
            import timm

            model = timm.create_model(
                "vit_tiny_patch16_224", pretrained=False, img_size=32, patch_size=8, depth=2
            )
            return preheat.Spec(model.eval(), examples=[(torch.randn(2, 3, 32, 32),)], grad=False)
    """,
    "preheat.toml": """
        targets = ["models.warm:bert", "models.warm:gpt2", "models.warm:vit"]
        jobs = 2
    """,
}

WORKER = """
    import json, sys, torch, preheat
    import models.warm
    from preheat.exercise import TOLERANCE, compare, exercise, make_spec
    from torch._dynamo.utils import counters

    name = sys.argv[1]
    factory = getattr(models.warm, name)
    wanted, mine = make_spec(factory, name), make_spec(factory, name)
    loaded = preheat.load(name, mine.fn, on_miss="error")
    (a,), (b,) = wanted.calls(), mine.calls()
    actual = exercise(mine, loaded, b)
    error = compare(exercise(wanted, wanted.fn, a), actual, TOLERANCE, name)
    report = loaded.preheat
    print(json.dumps({
        "form": report.form, "misses": report.misses, "error": error,
        "frames_compiled": report.frames_compiled, "tensors": len(actual.tensors),
        "graphs": counters["stats"]["unique_graphs"],
    }))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    for name in ("transformers", "timm"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: `make test` installs it")
    project = Project(tmp_path_factory.mktemp("models") / "project", FILES, caches)
    done = project.preheat("warm", "--json")
    assert done.code == 0, done.out + done.err
    return project


@pytest.mark.parametrize("target", ["bert", "gpt2", "vit"])
def test_a_model_loads_in_a_fresh_process_and_compiles_nothing(
    project: Project, target: str
) -> None:
    proof = project.manifest(target).proof
    assert proof is not None
    assert proof.frames_compiled == 0
    script = WORKER.replace("sys.argv[1]", repr(target))
    done = project.python(script)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["form"] == "lean"
    assert answer["misses"] == answer["frames_compiled"] == answer["graphs"] == 0
    assert answer["tensors"] > 1
    assert answer["error"] < 1e-3
