"""``preheat demo``: a small real project is warmed, edited while it is watched, and loaded.

Every figure is measured here and now, each in a fresh process after ``import torch``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from preheat.errors import BuildError, WaitTimeoutError
from preheat.store import DiskStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET = "classifier"
WAIT_SECONDS = 600.0

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


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo measured, in seconds where the name says so."""

    cold_seconds: float
    warm_seconds: float
    load_seconds: float
    build_seconds: float
    edit_to_fresh_seconds: float
    frames_compiled: int
    form: str
    correct: bool


def run(*, as_json: bool = False) -> int:
    """The command: print what happens, then the figures. Exit code 0 when every answer was right."""
    result = measure(_silent if as_json else click.echo)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        click.echo(
            f"\nA worker that loads is {result.cold_seconds / result.warm_seconds:.1f} times faster to its "
            f"first result than one that compiles: {result.warm_seconds:.3f} s against "
            f"{result.cold_seconds:.2f} s."
        )
    return 0 if result.correct and result.frames_compiled == 0 else 3


def _silent(_: str) -> None:
    pass


def measure(say: Callable[[str], None]) -> DemoResult:
    """Run the demo in a temporary directory that is removed afterwards.

    Raises ``BuildError`` when a step fails, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-demo-") as name:
        project = Path(name)
        _write(project)
        environment = {
            **os.environ,
            "PREHEAT_STORE": str(project / "store"),
            "PREHEAT_STATE": str(project / "state"),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(project), os.environ.get("PYTHONPATH", "")))
            ),
        }
        return _Demo(project, environment, say).run()


def _write(project: Path) -> None:
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


class _Demo:
    def __init__(
        self, project: Path, environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._project = project
        self._environment = environment
        self._say = say

    def run(self) -> DemoResult:
        self._say("cold: torch.compile and a first call, with empty caches ...")
        caches = self._project / "cold-caches"
        caches.mkdir()
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
        cold = self._python("cold.py", dict.fromkeys(names, str(caches)))
        self._say(f"      {cold['seconds']:.2f} s")
        self._say("warm: `preheat warm` builds the package and proves it ...")
        began = time.monotonic()
        self._command("warm")
        build_seconds = time.monotonic() - began
        self._say(f"      {build_seconds:.2f} s, once; every worker from now on only loads")
        warm = self._python("worker.py")
        self._say(
            f"load: {warm['load_seconds']:.3f} s, with the first call {warm['seconds']:.3f} s, "
            f"{warm['frames_compiled']} frames compiled, form {warm['form']}"
        )
        edit_seconds, after = self._edit_while_watched()
        self._say(
            f"edit: fresh again after {edit_seconds:.2f} s; a new worker gives the new answer"
        )
        changed = abs(after["sum"] - warm["sum"]) > 1e-6
        return DemoResult(
            cold_seconds=cold["seconds"],
            warm_seconds=warm["seconds"],
            load_seconds=warm["load_seconds"],
            build_seconds=build_seconds,
            edit_to_fresh_seconds=edit_seconds,
            frames_compiled=warm["frames_compiled"] + after["frames_compiled"],
            form=warm["form"],
            correct=bool(warm["correct"] and after["correct"] and changed),
        )

    def _edit_while_watched(self) -> tuple[float, dict[str, Any]]:
        self._say("edit: changing a constant of the model while `preheat serve` watches ...")
        model = self._project / "demo_app" / "model.py"
        with self._serving() as daemon:
            before = self._generation()
            began = time.monotonic()
            model.write_text(MODEL.replace("SCALE = 1.0", "SCALE = 1.5"))
            while self._generation() == before:
                if daemon.poll() is not None:
                    raise BuildError("`preheat serve` ended by itself.")
                if time.monotonic() - began > WAIT_SECONDS:
                    raise WaitTimeoutError("The edited target did not become fresh.")
                time.sleep(0.02)
            seconds = time.monotonic() - began
        return seconds, self._python("worker.py")

    @contextlib.contextmanager
    def _serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """A daemon that has made its first plan."""
        log = self._project / "serve.log"
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "preheatd", "serve"],
                cwd=self._project,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            began = time.monotonic()
            while b"ready" not in log.read_bytes().lower():
                if daemon.poll() is not None or time.monotonic() - began > WAIT_SECONDS:
                    raise BuildError(f"`preheat serve` did not start: {_end(log.read_bytes())}")
                time.sleep(0.05)
            yield daemon
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _generation(self) -> int:
        store = DiskStore(self._project / "store")
        return max((ref.generation for ref in store.refs(TARGET)), default=0)

    def _python(self, script: str, more: dict[str, str] | None = None) -> dict[str, Any]:
        output = self._call([sys.executable, script], more or {})
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def _command(self, *words: str) -> None:
        self._call([sys.executable, "-m", "preheatd", *words], {})

    def _call(self, command: list[str], more: dict[str, str]) -> bytes:
        done = subprocess.run(  # noqa: S603  our own scripts
            command,
            cwd=self._project,
            env={**self._environment, **more},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise BuildError(f"{' '.join(command[1:])} failed: {_end(done.stdout + done.stderr)}")
        return done.stdout


def _end(output: bytes) -> str:
    return output.decode(errors="replace")[-2000:]
