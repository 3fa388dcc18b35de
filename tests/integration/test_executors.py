"""Packages for environments that this machine does not have, built through executors that a user names.

The other node is a copy of the project whose interpreter is a double with another environment; the executors
are those of the standard library, and bad ones.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
import test_daemon_double as double
from test_daemon_builds import assert_ended, until
from test_daemon_service import edit, serving

from preheat.manifest import environment_digest
from preheat.sources.digest import module_digest
from preheat.store import DiskStore
from preheatd import cli, events

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
        line = b'{"format": 1, "outcome": "built", "manifest": "0"}\\n'
        return Does(lambda function, request: line + b"x" * 2000)

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

    def __init__(
        self, root: Path, targets: tuple[str, ...] = ("encoder",), extra: str = ""
    ) -> None:
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

    def several(self, factories: dict[str, tuple[str, str]], word: str = "") -> list[str]:
        """An executor for each name, for an environment of its own where no word says which."""
        _, head, section = self.file.read_text().partition("[executors.h200]")
        text = self.configuration
        for name, (factory, more) in factories.items():
            own = section.replace("cluster:threads", f"cluster:{factory}")
            text += (
                head.replace("h200", name) + own.replace("h200.json", f"{name}.json") + more + "\n"
            )
            self.write_environment(word or name, f"{name}.json")
        self.file.write_text(text)
        return [word for name in factories for word in ("--executor", name)]

    def write_environment(self, word: str = "two", name: str = "h200.json") -> None:
        found = double.environment(word)
        answer = {
            "cpu": found,
            "cuda": None,
            "digests": {"cpu": environment_digest(found), "cuda": None},
            "default_device": "cpu",
        }
        written = {"format": 1, "host": "gpu17", "answers": [answer], "targets": {}, "failed": {}}
        (self.here / name).write_bytes(msgspec.json.encode(written))

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


def warm(
    capfd: pytest.CaptureFixture[str], nodes: Nodes, *words: str
) -> tuple[int, dict[str, Any]]:
    code, said = run(capfd, "warm", "--json", "--config", nodes.file, *words)
    return code, {one["target"]: one for one in said["targets"]}


def test_a_package_for_another_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path)
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


BAD = {
    "raises": ("executor_failed", "raised RuntimeError: no such cluster"),
    "missing": ("executor_failed", "raised AttributeError"),
    "nothing": ("executor_failed", "returned NoneType, which has no `submit`"),
    "dies": ("executor_failed", "ended with exit status 7"),
    "broken": ("executor_failed", "broke: BrokenExecutor: the pool is gone"),
    "unpicklable": ("executor_failed", "raised from `result`: Local: from the worker"),
    "text": ("executor_failed", "returned str instead of the bytes"),
    "garbage": ("executor_failed", "no answer of a build"),
    "lies": ("bundle", "is refused: "),
}


def test_bad_executors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each is a failure with a name, a reason and a remedy; other targets are built, nothing is published."""
    nodes = Nodes(tmp_path)
    code, said = warm(capfd, nodes, *nodes.several({name: (name, "") for name in BAD}))
    assert code == 3
    for name, (kind, reason) in BAD.items():
        failure = said[f"encoder@{name}"]["failure"]
        assert (failure["kind"], failure["remedy"] != "") == (kind, True), failure
        assert reason in failure["message"], (name, failure)
    assert nodes.environments() == set()
    assert list((tmp_path / "store" / "state" / "work").iterdir()) == []
    # The same failure is remembered, as that of any build.
    _, said = run(capfd, "plan", "--json", "--config", nodes.file)
    waits = [one for one in said["targets"] if one["target"] == "encoder@raises"]
    assert (waits[0]["verdict"], waits[0]["action"]) == ("FAILED", "wait")
    code, said = warm(capfd, nodes, "encoder")
    assert (code, nodes.environments()) == (0, {HERE})


OTHER = {
    "target": ('target = "other"', "bundle", "nothing of what was asked for"),
    "environment": (f'environment = "{HERE}"', "environment_differs", "than its file says"),
    "version": ('preheat = "0.0.0"', "configuration", "has preheat"),
    "project": ('project = "/nowhere"', "configuration", "/nowhere is not there"),
    "request": ("format = []", "request", "not understood"),
}


def test_what_comes_back_must_be_what_was_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Executors that pass on another request than they were given, and one that damages the bundle."""
    nodes = Nodes(tmp_path)
    wrong = {name: ("asks_for", f"arguments = {{ {one[0]} }}") for name, one in OTHER.items()}
    nodes.several({**wrong, "damages": ("damages", "")}, word="two")
    for name, (_, kind, reason) in {**OTHER, "damages": ("", "bundle", "")}.items():
        code, said = warm(capfd, nodes, "--executor", name)
        failure = said[f"encoder@{name}"]["failure"]
        assert (code, failure["kind"]) == (3, kind), failure
        assert reason in failure["message"], failure
    assert nodes.environments() == set()
    assert nodes.environments("other") == set()


def test_other_sources_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A package of other sources is never published, however often it comes."""
    nodes = Nodes(tmp_path)
    (nodes.there / "app" / "encoder.py").write_text("def encoder():\n    return 'old'\n")
    code, said = warm(capfd, nodes, "--executor", "h200")
    failure = said["encoder@h200"]["failure"]
    assert (code, failure["kind"]) == (3, "sources_differ"), failure
    assert "app.encoder" in failure["message"]
    assert nodes.environments() == set()


def test_another_node_than_the_file_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The node's own failures come back with their words; the file decides what is built for."""
    nodes = Nodes(tmp_path)
    nodes.write_environment("three")
    code, said = warm(capfd, nodes, "--executor", "h200")
    failure = said["encoder@h200"]["failure"]
    assert (code, failure["kind"]) == (3, "environment_differs"), failure
    assert [(one["built"], one["here"]) for one in failure["reasons"]] == [("three", "two")]
    nodes.write_environment()
    double.write_double(nodes.there, environment="two", build="fail")
    code, said = warm(capfd, nodes, "--executor", "h200")
    failure = said["encoder@h200"]["failure"]
    assert (code, failure["kind"]) == (3, "target"), failure
    assert "ZeroDivisionError" in failure["message"]
    assert (
        "Traceback: the factory raised"
        in (tmp_path / "store" / "state" / "logs" / f"encoder@h200@{THERE}.log").read_text()
    )
    # A file that is not there is the trouble of these lines alone.
    (nodes.here / "h200.json").unlink()
    code, said = run(capfd, "status", "--json", "--config", nodes.file)
    (line,) = [one for one in said["targets"] if one["target"] == "encoder@h200"]
    assert (line["verdict"], line["failure"]["kind"]) == ("FAILED", "probe")


def test_an_executor_that_hangs_is_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes(tmp_path)
    nodes.configure("hangs", extra="timeout = 3.0")
    code, said = warm(capfd, nodes, "--executor", "h200")
    failure = said["encoder@h200"]["failure"]
    assert (code, failure["kind"], failure["phase"]) == (4, "timed_out", "submitted"), failure
    pid = int((nodes.here / "hanging").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_through_a_store_that_both_reach(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes(tmp_path)
    shared = tmp_path / "shared"
    nodes.configure("processes", extra=f'through = "{shared}"')
    code, said = warm(capfd, nodes, "--executor", "h200")
    assert (code, said["encoder@h200"]["result"]) == (0, "built"), said
    assert nodes.environments() == {THERE}
    (ref,) = DiskStore(shared).refs("encoder")
    assert ref.environment == THERE


def test_what_a_node_asks_is_about_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a name, `warm` and `would-hit` are about this machine: they stand at the beginning of jobs."""
    nodes = Nodes(tmp_path)
    code, said = warm(capfd, nodes)
    assert (code, list(said), nodes.environments()) == (0, ["encoder"], {HERE})
    code, said = run(capfd, "would-hit", "--json", "--config", nodes.file)
    assert (code, [one["target"] for one in said["targets"]]) == (0, ["encoder"])
    words = ("would-hit", "--json", "--config", nodes.file, "--against", nodes.here / "h200.json")
    assert run(capfd, *words)[0] == 3
    assert warm(capfd, nodes, "--executor", "h200")[0] == 0
    assert run(capfd, *words)[0] == 0
    # Where nothing is built here, everything is meant.
    nodes.file.write_text("here = false\n" + nodes.file.read_text())
    code, said = warm(capfd, nodes)
    assert (code, list(said), said["encoder@h200"]["result"]) == (0, ["encoder@h200"], "skipped")
    assert run(capfd, *words)[0] == 0


async def test_a_daemon_keeps_them_fresh(tmp_path: Path) -> None:
    """What hangs elsewhere holds up nothing here, ends with an edit, and is built when the executor works."""
    nodes = Nodes(tmp_path)
    nodes.configure("hangs")
    async with serving(nodes.file, rescan_seconds=1.0) as heard:
        await heard.next(events.BUILD_PUBLISHED, "encoder")
        pid = await until(nodes.here / "hanging")
        (nodes.here / "hanging").unlink()
        for side in (nodes.there, nodes.here):
            edit(side / "preheat.toml", "encoder", 2)
        await heard.next(events.BUILD_SUPERSEDED, "encoder@h200")
        assert_ended(pid)
        await until(nodes.here / "hanging")
        nodes.configure("threads")
        edit(nodes.there / "preheat.toml", "encoder", 3)
        edit(nodes.file, "encoder", 3)
        published = await heard.next(events.BUILD_PUBLISHED, "encoder@h200")
        assert published.environment == THERE
    assert {HERE, THERE} == nodes.environments()
    (ref,) = [one for one in nodes.store().refs("encoder") if one.environment == THERE]
    (module,) = nodes.store().read_manifest(ref.manifest).sources.modules
    assert module.digest == module_digest((nodes.here / "app" / "encoder.py").read_bytes())
