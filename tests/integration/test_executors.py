"""Packages for environments that this machine does not have, built through executors that the user names.

The other node is a copy of the project whose interpreter is a double with another environment; the executors are
those of the standard library, and bad ones.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import test_daemon_double as double

from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheatd import cli

THERE = environment_digest(double.environment("two"))
HERE = environment_digest(double.environment("one"))

FACTORIES = """
    import os, time
    from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

    def threads(workers=1):
        return ThreadPoolExecutor(workers)

    def processes():
        return ProcessPoolExecutor(1)

    def raises():
        raise RuntimeError("no such cluster")

    def nothing():
        return None

    def dies():
        os._exit(7)

    class Does(Executor):
        def __init__(self, act):
            self.act = act

        def submit(self, function, request):
            future = Future()
            try:
                future.set_result(self.act(function, request))
            except BaseException as error:
                future.set_exception(error)
            return future

    def broken():
        def act(function, request):
            raise BrokenExecutor("the pool is gone")
        return Does(act)

    def unpicklable():
        class Local(Exception):
            def __reduce__(self):
                raise TypeError("cannot be pickled")
        def act(function, request):
            raise Local("from the worker")
        return Does(act)

    def text():
        return Does(lambda function, request: "done")

    def garbage():
        return Does(lambda function, request: b"\\x00" * 1000)

    def lies():
        return Does(lambda function, request: b'{"format": 1, "outcome": "built", "manifest": "0"}\\n' + b"x" * 2000)

    def damages():
        return Does(lambda function, request: function(request)[:-2000] + b"x" * 2000)

    def asks_for(**other):
        import json
        def act(function, request):
            return function(json.dumps({**json.loads(request), **other}).encode())
        return Does(act)

    def hangs():
        def act(function, request):
            with open("hanging", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(600)
        return Does(act)
"""


class Nodes:
    """Two nodes: a project here, and a copy of it there whose environment is another one."""

    def __init__(self, root: Path, targets: tuple[str, ...] = ("encoder",), extra: str = "") -> None:
        self.root = root
        self.here = root / "here"
        self.there = root / "there"
        self.file = double.make_project(self.here, targets)
        self.configuration = self.file.read_text()
        (self.here / "cluster.py").write_text(textwrap.dedent(FACTORIES))
        shutil.copytree(self.here, self.there)
        double.write_double(self.there, environment="two")
        self.write_environment()
        self.configure("threads", extra=extra)

    def write_environment(self, word: str = "two") -> None:
        found = double.environment(word)
        answer = {
            "cpu": found,
            "cuda": None,
            "digests": {"cpu": environment_digest(found), "cuda": None},
            "default_device": "cpu",
        }
        written = {"format": 1, "host": "gpu17", "answers": [answer], "targets": {}, "failed": {}}
        (self.here / "h200.json").write_bytes(msgspec.json.encode(written))

    def configure(self, factory: str, *, arguments: str = "", extra: str = "") -> None:
        section = f"""
            [executors.h200]
            factory = "cluster:{factory}"
            environment = "h200.json"
            remote_project = "{self.there}"
            remote_python = "{self.there / "python"}"
            {extra}
            {arguments}
        """
        self.file.write_text(self.configuration + textwrap.dedent(section))

    def store(self) -> DiskStore:
        return DiskStore(self.root / "store")

    def environments(self, target: str = "encoder") -> set[str]:
        if not (self.root / "store" / "v1").exists():
            return set()
        return {ref.environment for ref in self.store().refs(target)}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE"):
        monkeypatch.delenv(name, raising=False)


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = cli.run([str(word) for word in words])
    said = capfd.readouterr()
    lines = said.out.splitlines()
    return code, json.loads(lines[-1]) if lines else said.err


def warm(capfd: pytest.CaptureFixture[str], nodes: Nodes, *words: str) -> tuple[int, dict[str, Any]]:
    code, said = run(capfd, "warm", "--json", "--config", nodes.file, *words)
    return code, {one["target"]: one for one in said["targets"]}


@pytest.mark.parametrize("factory", ["threads", "processes"])
def test_a_package_for_another_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], factory: str
) -> None:
    nodes = Nodes(tmp_path)
    nodes.configure(factory)
    code, said = warm(capfd, nodes, "--executor", "h200")
    assert (code, said["encoder@h200"]["result"]) == (0, "built"), said
    assert nodes.environments() == {THERE}
    assert "build encoder" in (nodes.there / "double.log").read_text()
    assert not (nodes.here / "double.log").exists()
    # It is fresh now, until its sources here change; what is built here is another line.
    _, said = run(capfd, "plan", "--json", "--config", nodes.file)
    verdicts = {one["target"]: one["verdict"] for one in said["targets"]}
    assert verdicts == {"encoder": "MISSING", "encoder@h200": "FRESH"}
    for side in (nodes.here, nodes.there):
        (side / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")
    code, said = run(capfd, "explain", "encoder@h200", "--json", "--config", nodes.file)
    assert (code, said["verdict"], said["environment"]) == (3, "STALE", THERE)
    code, said = warm(capfd, nodes, "encoder@h200")
    assert (code, list(said)) == (0, ["encoder@h200"])
    assert said["encoder@h200"]["result"] == "built"
