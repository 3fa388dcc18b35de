"""By hand on a GPU machine: what NVIDIA's driver says, and builds that wait for a busy GPU.

Needs nvidia-ml-py beside torch, and a GPU that nobody else uses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from preheatd import events
from preheatd.politeness.gate import Gate
from preheatd.politeness.gpus import GpuState, Nvml, gpu_names
from preheatd.politeness.settings import Politeness
from preheatd.schedule import Slot
from support.project import LIMIT_SECONDS, Project, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.gpu

FILES = {
    "app/__init__.py": "",
    "app/warm.py": """
        import preheat
        import torch


        def program(x):
            return torch.relu(x) * 2 + 1


        @preheat.target
        def on_gpu():
            return preheat.Spec(program, examples=[(torch.zeros(64, device="cuda"),)], grad=False)
    """,
    "preheat.toml": 'targets = ["app.warm:on_gpu"]\n',
}
HOLD = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
print("held", flush=True)
if sys.argv[1] == "compute":
    one = torch.rand(4096, 4096, device="cuda")
    while True:
        one = (one @ one).clamp(0, 1)
        torch.cuda.synchronize()
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")


@pytest.fixture
def name() -> str:
    """The GPU that a build takes here."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    (name,) = gpu_names("cuda", {}, os.environ)
    return name


def look(name: str) -> GpuState:
    state = Nvml().look([name])[name]
    assert state.trouble == ""
    return state


@pytest.fixture
def holder(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else who uses the GPU: its memory, or its time as well."""
    what = getattr(request, "param", "memory")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with process:
        yield process
        process.kill()


def test_the_driver_answers(name: str) -> None:
    state = look(name)
    assert state.memory_used is not None
    assert 0 <= state.memory_used < 0.5
    assert state.identity.startswith(("GPU-", "MIG-"))
    # The same GPU by its identity, and by the beginning of it, as CUDA takes both.
    assert look(state.identity).identity == state.identity
    if state.identity.startswith("GPU-"):
        assert look(state.identity[:12]).identity == state.identity
    assert Nvml().look(["99"])["99"].trouble


def test_memory_of_others_counts(name: str, holder: subprocess.Popen[bytes]) -> None:
    assert (look(name).memory_used or 0) > 0.55
    holder.kill()
    holder.wait()
    until(lambda: (look(name).memory_used or 0) < 0.5, "free")


@pytest.mark.parametrize("holder", ["compute"], indirect=True)
def test_time_of_others_counts(name: str, holder: subprocess.Popen[bytes]) -> None:
    if look(name).utilisation is None:
        pytest.skip("this GPU, or part of one, tells no utilisation")
    until(lambda: (look(name).utilisation or 0) > 0.5, "busy")


async def test_the_gate_waits_for_a_busy_gpu(name: str, holder: subprocess.Popen[bytes]) -> None:
    heard: list[events.Event] = []
    time_passed = [0.0]
    gate = Gate(Politeness(), heard.append, clock=lambda: time.monotonic() + time_passed[0])
    waiting = [Slot(target="on_gpu", gpus=frozenset({name}))]
    assert await gate.look(waiting, (), 1) is not None
    assert gate.startable(waiting, (), 1) == ()
    assert [event.action for event in heard] == [events.BUILD_WAITING]
    assert "gpu_memory_below" in str(heard[0])

    holder.kill()
    holder.wait()
    until(lambda: (look(name).memory_used or 0) < 0.5, "free")
    time_passed[0] += 60
    await gate.look(waiting, (), 1)
    assert gate.startable(waiting, (), 1) == tuple(waiting)


def test_warm_waits_until_the_gpu_is_free(
    tmp_path: Path, name: str, holder: subprocess.Popen[bytes]
) -> None:
    project = Project(tmp_path / "project", FILES)
    process = subprocess.Popen(
        [sys.executable, "-m", "preheatd", "warm"],
        cwd=project.root,
        env=project.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            assert "build started" not in line
            if "build waiting" in line:
                assert "gpu busy" in line
                break
        holder.kill()
        rest = process.stderr.read()
        assert process.wait(LIMIT_SECONDS) == 0, rest
    assert "build started" in rest
    worker = project.python(
        """
        import preheat, torch
        from app.warm import program
        loaded = preheat.load("on_gpu", program, on_miss="error")
        print(loaded.preheat.form, loaded(torch.ones(64, device="cuda")).sum().item())
        """
    )
    assert worker.code == 0, worker.err
    assert worker.out.split()[-1] == "192.0"
