"""The small project of ``preheat demo``, as text: nothing here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """\
import torch
from torch import nn

SCALE = 1.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))) * SCALE


class Classifier(nn.Module):
    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(dim=-1)


def build() -> Classifier:
    torch.manual_seed(7)
    return Classifier().eval()


def batch() -> torch.Tensor:
    return torch.linspace(-1.0, 1.0, 32 * 64).reshape(32, 64)
"""

WARM = """\
import preheat
from demo_app.model import batch, build


@preheat.target
def classifier() -> preheat.Spec:
    return preheat.Spec(build(), examples=[(batch(),)], grad=False)
"""

CONFIGURATION = 'targets = ["demo_app.warm:classifier"]\nwatch = ["demo_app"]\n'

COLD = """\
import json, time, torch
from demo_app.model import batch, build

model, x = build(), batch()
began = time.perf_counter()
compiled = torch.compile(model)
with torch.no_grad():
    compiled(x)
print(json.dumps({"seconds": time.perf_counter() - began}))
"""

WORKER = """\
import json, time, torch
from demo_app.model import batch, build

model, x = build(), batch()
began = time.perf_counter()
import preheat
loaded = preheat.load("classifier", model, on_miss="error")
output = loaded(x)
seconds = time.perf_counter() - began
with torch.no_grad():
    wanted = model(x)
report = loaded.preheat
print(json.dumps({
    "seconds": seconds,
    "load_seconds": report.load_seconds,
    "form": report.form,
    "frames_compiled": report.frames_compiled,
    "correct": bool(torch.allclose(output, wanted, rtol=1e-3, atol=1e-5)),
    "sum": float(wanted[:, 0].sum()),
}))
"""


def write(project: Path) -> None:
    """Write all files of the project."""
    package = project / "demo_app"
    package.mkdir()
    files = {
        package / "__init__.py": "",
        package / "model.py": MODEL,
        package / "warm.py": WARM,
        project / "preheat.toml": CONFIGURATION,
        project / "cold.py": COLD,
        project / "worker.py": WORKER,
    }
    for path, text in files.items():
        path.write_text(text)
