"""A PyTorch project in a directory, driven through the same commands that a person types."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

from preheat.store import DiskStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from preheat.manifest import Manifest, Ref

LIMIT_SECONDS = 400


@dataclasses.dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The last line of standard output as JSON."""
        try:
            return json.loads(self.out.splitlines()[-1])
        except (IndexError, json.JSONDecodeError) as error:
            raise AssertionError(f"no JSON in {self}") from error


class Project:
    """A project directory with its own store; compiler caches may be shared between projects."""

    def __init__(self, root: Path, files: Mapping[str, str], caches: Path | None = None) -> None:
        self.root = root
        self.store_path = root / "store"
        root.mkdir(parents=True, exist_ok=True)
        self.write(files)
        self.environment = {
            **os.environ,
            "PREHEAT_STORE": str(self.store_path),
            "PREHEAT_STATE": str(root / "state"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if caches is not None:
            # The state directory keeps one compiler cache per environment; share those.
            caches.mkdir(parents=True, exist_ok=True)
            (root / "state").mkdir(mode=0o700)
            (root / "state" / "caches").symlink_to(caches)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def preheat(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        return self.run(sys.executable, "-m", "preheatd", *words, env=env)

    def python(self, script: str, env: Mapping[str, str] | None = None) -> Done:
        """Run a worker: a script of a few lines, in a fresh interpreter."""
        return self.run(sys.executable, "-c", textwrap.dedent(script), env=env)

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> Done:
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            input=stdin,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def serving(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Daemon]:
        """A daemon that has made its first plan; ended by SIGTERM."""
        log = self.root / f"serve-{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "preheatd", "serve", *words],
                cwd=self.root,
                env={**self.environment, **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        daemon = Daemon(process, log)
        try:
            until(lambda: "ready" in daemon.text().lower() or not daemon.alive(), "ready")
            assert daemon.alive(), daemon.text()
            yield daemon
        finally:
            if daemon.alive():
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(LIMIT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def until_fresh(self, what: str = "fresh", seconds: float = LIMIT_SECONDS) -> None:
        """Wait until nothing is to be done. To ask costs as much as a part of a build: not all the time."""
        until(lambda: self.preheat("plan").code == 0, what, seconds, pause=1.0)

    def store(self) -> DiskStore:
        return DiskStore(self.store_path)

    def refs(self, target: str) -> list[Ref]:
        return list(self.store().refs(target))

    def generation(self, target: str) -> int:
        return max((ref.generation for ref in self.refs(target)), default=0)

    def manifest(self, target: str) -> Manifest:
        (ref,) = self.refs(target)
        return self.store().read_manifest(ref.manifest)


@dataclasses.dataclass
class Daemon:
    """A running ``preheat serve``."""

    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        """What it has printed, in whole lines: of the last one only a part may be there yet."""
        return "".join(self.log.read_text(errors="replace").rpartition("\n")[:2])


def until(
    condition: Any, what: str, seconds: float = LIMIT_SECONDS, *, pause: float = 0.05
) -> None:
    """Wait for something that another process does, and look every ``pause`` seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"still not {what} after {seconds} s")
        time.sleep(pause)
