"""Edits before, during and after a build, with real builds and real workers."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from support.project import Project, until
from support.small import FILES, WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.forge import Forge


@pytest.fixture
def project(tmp_path: Path, caches: Path) -> Project:
    return Project(tmp_path / "project", FILES, caches)


class Gates:
    """Holds a build up at one place, from outside: see ``app/gates.py`` of the small project."""

    def __init__(self, project: Project) -> None:
        self._closed: str | None = None
        self._reached = threading.Event()
        self._open = threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind("\0preheat-gate" + str(project.root / "app" / "gates.py"))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                if connection.recv(64).decode() == self._closed:
                    self._reached.set()
                    self._open.wait(300)

    def close(self, name: str) -> None:
        self._closed = name

    def reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._closed = None
        self._open.set()

    def end(self) -> None:
        self.open()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(120)


@pytest.fixture
def gates(project: Project) -> Iterator[Gates]:
    gates = Gates(project)
    yield gates
    gates.end()


@contextlib.contextmanager
def running(project: Project, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "preheatd", *words],
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(300)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("place", ["constructing", "called"])
def test_an_edit_during_a_build_never_publishes_old_code(
    project: Project, gates: Gates, place: str
) -> None:
    """``constructing``: imported, then edited; ``called``: traced and compiled, then edited."""
    gates.close(place)
    with running(project, "warm", "--json") as warm:
        until(lambda: gates.reached() or warm.poll() is not None, "held up")
        assert warm.poll() is None, warm.communicate()
        project.edit("app/model.py", "FACTOR = 2.0", "FACTOR = 5.0")
        gates.open()
        out, err = warm.communicate(timeout=400)
    assert warm.returncode == 0, out + err
    done = project.python(WORKER)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["right"]
    assert answer["last"] == pytest.approx(5.0 * math.sin(1.0) + 1, abs=1e-5)
    assert answer["frames_compiled"] == 0


def test_while_it_is_watched_an_edit_becomes_a_package_and_a_comment_becomes_nothing(
    project: Project, forge: Forge
) -> None:
    forge.warm(project)
    before = project.generation("program")
    with project.serving("--json") as daemon:
        project.edit("app/model.py", "# a comment", "# another comment,\n    # of two lines")
        project.edit("app/warm.py", 'gate("constructing")', 'gate(  "constructing"  )')
        until(lambda: daemon.text().count('"planned"') >= 2, "planned again")
        assert project.preheat("plan").code == 0
        assert project.generation("program") == before
        assert "build_started" not in daemon.text()

        project.edit("app/model.py", "FACTOR = 2.0", "FACTOR = 3.0")
        until(lambda: project.generation("program") > before, "rebuilt")
    done = project.python(WORKER)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["right"]
    assert answer["last"] == pytest.approx(3.0 * math.sin(1.0) + 1, abs=1e-5)
    assert answer["frames_compiled"] == 0


def test_a_worker_with_old_code_does_not_take_the_new_package(
    project: Project, forge: Forge
) -> None:
    script = """
        import json, pathlib, subprocess, sys, torch, preheat
        from app import model

        path = pathlib.Path("app/model.py")
        path.write_text(path.read_text().replace("FACTOR = 2.0", "FACTOR = 4.0")
                        .replace("+ 1", "+ 2"))
        warm = subprocess.run([sys.executable, "-m", "preheatd", "warm"], capture_output=True)
        loaded = preheat.load("program", model.program, on_miss="eager")
        x = torch.linspace(0, 1, 16)
        report = loaded.preheat
        print(json.dumps({
            "warm": warm.returncode, "form": report.form, "verdict": report.verdict,
            "kinds": sorted({reason.kind for reason in report.reasons}),
            "right": bool(torch.equal(loaded(x), model.program(x))),
        }))
    """
    forge.warm(project)
    done = project.python(script)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["warm"] == 0
    assert answer["right"]
    assert answer["form"] == "eager"
    assert answer["verdict"] == "STALE"
    assert "live_code_differs" in answer["kinds"]


def test_a_worker_does_not_mind_a_comment_that_changes_after_its_imports(
    project: Project, forge: Forge
) -> None:
    forge.warm(project)
    keeps_bytecode = {"PYTHONDONTWRITEBYTECODE": ""}
    assert project.python("import app.model", env=keeps_bytecode).code == 0
    script = WORKER.replace(
        "x = torch",
        """
    import pathlib
    path = pathlib.Path("app/model.py")
    path.write_text(path.read_text().replace("# a comment", "# another one,\\n    # longer"))
    x = torch""",
        1,
    )
    done = project.python(script, env=keeps_bytecode)
    assert done.code == 0, done.err
    answer = done.json()
    assert (answer["form"], answer["frames_compiled"], answer["right"]) == ("lean", 0, True)


def test_a_worker_refuses_what_is_stale_and_says_which_file(project: Project, forge: Forge) -> None:
    forge.warm(project)
    touched = project.preheat("explain", "program", "--if-edited", "app/model.py", "--json").json()
    assert {unit["symbol"] for unit in touched["counts"]} >= {"FACTOR", "helper", "program"}
    project.edit("app/model.py", "FACTOR = 2.0", "FACTOR = 7.0")
    explained = project.preheat("explain", "program")
    assert explained.code == 3
    assert "symbol edited: app/model.py FACTOR (line 4), makes it stale" in explained.out
    assert "    -FACTOR = 2.0\n    +FACTOR = 7.0\n" in explained.out
    answer = project.preheat("explain", "program", "--json").json()
    (symbol,) = answer["symbols"]
    assert symbol["diff"] == ["@@ -1 +1 @@", "-FACTOR = 2.0", "+FACTOR = 7.0"]
    assert answer["settings"]["default_dtype"] == "torch.float32"
    script = """
        import json, warnings, torch, preheat
        from app.model import program

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = preheat.load("program", program)
        x = torch.linspace(0, 1, 16)
        report = loaded.preheat
        print(json.dumps({
            "form": report.form, "verdict": report.verdict,
            "files": [reason.file for reason in report.reasons],
            "said": [str(w.message) for w in caught if w.category is preheat.PreheatWarning],
            "right": bool(torch.allclose(loaded(x), program(x))),
        }))
    """
    done = project.python(script)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer["form"] == "compile"
    assert answer["verdict"] == "STALE"
    assert "app/model.py" in answer["files"]
    assert len(answer["said"]) == 1
    assert "app/model.py" in answer["said"][0]
    assert answer["right"]


def test_texts_of_sources_are_kept_for_explanations_alone(project: Project) -> None:
    """Neither a worker nor the plan needs them, and an environment is explained side by side."""
    assert project.preheat("warm").code == 0
    store, manifest = project.store(), project.manifest("program")
    texts = {module.path: module.text() for module in manifest.sources.modules}
    for path, ref in texts.items():
        assert ref is not None
        opened = store.open_object(ref)
        assert opened.read() == (project.root / path).read_bytes()
        opened.close()
        store.layout.object(ref.sha256).unlink()
    assert project.preheat("plan").code == 0
    answer = project.python(WORKER).json()
    assert (answer["frames_compiled"], answer["right"]) == (0, True)
    project.edit("app/model.py", "# a comment", "# another comment,\n    # of two lines")
    (helper, moved) = project.preheat("explain", "program", "--json").json()["symbols"]
    assert (helper["kind"], helper["diff"]) == ("symbol_reformatted", [])
    assert (moved["kind"], moved["symbol"]) == ("symbol_moved", "program")

    elsewhere = project.preheat("explain", "program", env={"OMP_NUM_THREADS": "3"})
    assert elsewhere.code == 3
    (row,) = [line.split() for line in elsewhere.out.splitlines() if "OMP_NUM" in line]
    assert row[-2:] == ["nothing", "3"]


def test_a_graph_that_was_compiled_before_is_not_compiled_again(project: Project) -> None:
    """Code that differs and leads to the same graph takes what the last build left in the cache."""

    def graphs() -> int:
        caches = (project.root / "state" / "caches").resolve()
        return sum(path.is_file() for path in caches.glob("*/inductor/aotautograd/**/*"))

    # A constant that no other test has, because all of them share the caches.
    project.edit("app/model.py", "FACTOR = 2.0", "FACTOR = 2.71875")
    assert project.preheat("warm").code == 0
    before, generation = graphs(), project.generation("program")
    project.edit(
        "app/model.py", "return x.sin() * FACTOR", "factor = FACTOR\n    return x.sin() * factor"
    )
    assert project.preheat("warm").code == 0
    assert project.generation("program") == generation + 1
    assert graphs() == before
    done = project.python(WORKER)
    assert done.code == 0, done.err
    answer = done.json()
    assert (answer["form"], answer["frames_compiled"], answer["right"]) == ("lean", 0, True)
    project.edit("app/model.py", "2.71875", "2.8125")
    assert project.preheat("warm").code == 0
    assert graphs() > before


def test_waiting_takes_the_package_when_it_comes(project: Project) -> None:
    script = """
        import json, pathlib, torch, preheat
        from app.model import program

        pathlib.Path("waiting").touch()
        loaded = preheat.load("program", program, on_miss="wait", wait_seconds=300)
        print(json.dumps([loaded.preheat.form, float(loaded(torch.linspace(0, 1, 16))[-1])]))
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", "\n".join(line.strip() for line in script.splitlines())],
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: (project.root / "waiting").exists(), "waiting")
    assert project.preheat("warm").code == 0
    out, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0
    assert out.startswith('["lean", ')


def test_an_installed_library_that_changed_makes_its_users_stale(
    tmp_path: Path, caches: Path
) -> None:
    libraries = tmp_path / "site-packages"
    metadata = libraries / "somelib-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somelib\nVersion: 1.0\n")
    (metadata / "top_level.txt").write_text("somelib\n")
    (libraries / "somelib.py").write_text("def scaled(x):\n    return x * 2.0\n")
    project = Project(tmp_path / "project", FILES, caches)
    project.edit("app/model.py", "return x.sin() * FACTOR", "return somelib.scaled(x.sin())")
    project.edit("app/model.py", "import torch", "import somelib\nimport torch")
    project.environment["PYTHONPATH"] += f":{libraries}"
    done = project.preheat("warm")
    assert done.code == 0, done.out + done.err
    sources = project.manifest("program").sources
    assert [(one.distribution, one.version) for one in sources.libraries] == [("somelib", "1.0")]
    assert [one.path for one in sources.library_files] == ["somelib.py"]
    assert "somelib" not in {module.module for module in sources.modules}
    assert project.python(WORKER).json()["right"]

    (libraries / "somelib.py").write_text("def scaled(x):\n    return x * 3.0\n")
    planned = project.preheat("plan", "--json").json()["targets"][0]
    assert planned["verdict"] == "STALE"
    assert [reason["kind"] for reason in planned["reasons"]] == ["library_changed"]
    assert "library changed" in project.python(WORKER).err

    (libraries / "somelib.py").write_text("def scaled(x):\n    return x * 2.0\n")
    assert project.preheat("plan").code == 0
    metadata.rename(libraries / "somelib-1.1.dist-info")
    planned = project.preheat("plan", "--json").json()["targets"][0]
    assert [reason["detail"] for reason in planned["reasons"]] == ["built with 1.0, here 1.1"]
