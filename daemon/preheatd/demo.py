"""``preheat demo``: a small real project is warmed, edited while it is watched, and loaded.

Every figure is measured here and now, each in a fresh process after ``import torch``. What a worker
needs is the median of several workers: a single one may be hit by whatever else the machine does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
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
from preheatd.demo_project import MODEL, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET = "classifier"
WAIT_SECONDS = 600.0
WORKERS = 5


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo measured, in seconds where the name says so.

    ``factor``: how many times faster a worker that loads gets to its first result.
    """

    factor: float
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
            f"\nA worker that loads is {result.factor:.0f} times faster to its first result than one that "
            f"compiles: {result.warm_seconds:.3f} s against {result.cold_seconds:.2f} s."
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
        write(project)
        # Python keeps the bytecode of modules as it does for every user.
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment = {
            **inherited,
            "PREHEAT_STORE": str(project / "store"),
            "PREHEAT_STATE": str(project / "state"),
            # A store of its own: keys that this machine trusts have nothing to do with it.
            "PREHEAT_SIGNATURES": "off",
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(project), os.environ.get("PYTHONPATH", "")))
            ),
        }
        return _Demo(project, environment, say).run()


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
        workers = [self._python("worker.py") for _ in range(WORKERS)]
        warm = {**workers[-1], **_medians(workers, ("seconds", "load_seconds"))}
        self._say(
            f"load: {warm['load_seconds']:.3f} s; with `import preheat` and the first call "
            f"{warm['seconds']:.3f} s (median of {WORKERS} workers), "
            f"{sum(one['frames_compiled'] for one in workers)} frames compiled, form {warm['form']}"
        )
        edit_seconds, after = self._edit_while_watched()
        self._say(
            f"edit: fresh again after {edit_seconds:.2f} s; a new worker gives the new answer"
        )
        changed = abs(after["sum"] - warm["sum"]) > 1e-6
        return DemoResult(
            factor=cold["seconds"] / warm["seconds"],
            cold_seconds=cold["seconds"],
            warm_seconds=warm["seconds"],
            load_seconds=warm["load_seconds"],
            build_seconds=build_seconds,
            edit_to_fresh_seconds=edit_seconds,
            frames_compiled=sum(one["frames_compiled"] for one in (*workers, after)),
            form=warm["form"],
            correct=all(one["correct"] for one in (*workers, after)) and changed,
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


def _medians(runs: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in runs) for name in names}


def _end(output: bytes) -> str:
    return output.decode(errors="replace")[-2000:]
