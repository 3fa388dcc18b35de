"""Processes that imported something else than what lies on disk: real ones, edited around."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import types
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.manifest import ModuleSource, Sources, sha256
from preheat.sources import running
from preheat.sources.closure import find_closure
from preheat.sources.digest import module_digest
from preheat.sources.files import FileDigests
from preheat.sources.running import edited_since_start
from preheat.started import interpreter_started_ns

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
FACTOR = 2.0


def helper(x):
    # a comment
    return x * FACTOR


class Model:
    bias = 1

    def forward(self, x):
        return helper(x) + self.bias


def unused():
    return 1
"""
SAME = TEXT.replace("# a comment", "# a comment\n    # of two lines")
EDITS = {
    "a constant": ("FACTOR = 2.0", "FACTOR = 3.0"),
    "a function": ("x * FACTOR", "x / FACTOR"),
    "an attribute of a class": ("bias = 1", "bias = 2"),
    "an effect at the end": ("return 1\n", "return 1\n\n\nModel.bias = 5\n"),
}

# Runs in a worker of its own: the steps are lines of Python between which the test edits nothing.
PRELUDE = """
    import json, os, sys, time, zlib, msgspec
    from pathlib import Path
    FILE = Path("model.py")

    def write(text):
        FILE.write_text(text)
        # Each text has a time of its own, the same every time, as if versions were restored: within
        # one second Python would take two texts of one size for the same.
        seconds = 1_600_000_000 + zlib.crc32(text.encode()) % 100_000_000
        os.utime(FILE, (seconds, seconds))

    def verdict():
        from preheat.manifest import Sources
        from preheat.sources.check import check
        from preheat.sources.files import FileDigests
        from preheat.sources.locate import import_locator
        from preheat.sources.running import edited_since_start
        sources = msgspec.json.decode(Path("sources.json").read_bytes(), type=Sources)
        found = (
            *check(sources, import_locator(), environ={}),
            *edited_since_start(sources, FileDigests()),
        )
        return [one.kind for one in found]

    def answer(value):
        print(json.dumps(value))
        sys.stdout.flush()
"""


def snapshot(text: str) -> Sources:
    data = text.encode()
    closure = find_closure({"model": (False, data)}, [("model", "Model")], inherited=())
    recorded = ModuleSource(
        module="model",
        root=0,
        path="model.py",
        file_sha256=sha256(data),
        digest=module_digest(data),
    )
    return Sources(modules=(recorded,), closure=closure)


class Worker:
    """A directory with one module, a package's snapshot of it, and processes that run there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.write(TEXT)
        self.package(TEXT)

    def write(self, text: str) -> None:
        self.run(f"write({text!r})")

    def package(self, text: str) -> None:
        (self._directory / "sources.json").write_bytes(msgspec.json.encode(snapshot(text)))

    def remember_bytecode(self) -> None:
        """What an earlier process leaves behind."""
        self.run("import model")
        # Later processes must be younger than that by more than the tick of the kernel's clock.
        time.sleep(0.05)

    def run(self, script: str, *, bytecode: bool = True) -> Any:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((".", *sys.path))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(script)],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


IMPORTED_THEN_EDITED = """
    import model
    write({text!r})
    answer(verdict())
"""


def test_a_comment_after_the_import_is_no_edit(worker: Worker) -> None:
    worker.remember_bytecode()
    assert worker.run(IMPORTED_THEN_EDITED.format(text=SAME)) == []


def test_a_comment_is_one_where_the_cache_cannot_show_it(worker: Worker) -> None:
    # The process writes the cache itself: so may have done any other.
    assert worker.run(IMPORTED_THEN_EDITED.format(text=SAME)) == ["module_edited"]
    worker.write(TEXT)
    worker.remember_bytecode()
    script = IMPORTED_THEN_EDITED.format(text=SAME)
    assert worker.run(script, bytecode=False) == ["module_edited"]
    unchecked = """
        import py_compile
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile("model.py", invalidation_mode=mode)
    """
    worker.write(TEXT)
    worker.run(unchecked)
    time.sleep(0.05)
    assert worker.run(script) == ["module_edited"]


@pytest.mark.parametrize("name", EDITS)
def test_old_code_never_takes_a_new_package(worker: Worker, name: str) -> None:
    """Imported, edited, and built again: disk and package agree, and not with this process."""
    worker.remember_bytecode()
    edited = TEXT.replace(*EDITS[name])
    worker.package(edited)
    assert worker.run(IMPORTED_THEN_EDITED.format(text=edited)) == ["module_edited"]


@pytest.mark.parametrize("name", EDITS)
def test_new_code_never_takes_an_old_package(worker: Worker, name: str) -> None:
    """The edit was undone after it was imported."""
    worker.write(TEXT.replace(*EDITS[name]))
    worker.remember_bytecode()
    assert worker.run(IMPORTED_THEN_EDITED.format(text=TEXT)) == ["module_edited"]


@pytest.mark.parametrize("name", EDITS)
def test_code_that_was_replaced_before_the_import_is_seen(worker: Worker, name: str) -> None:
    """Edited after the start, imported, and undone: the cache is younger than the process."""
    worker.remember_bytecode()
    script = f"""
        write({TEXT.replace(*EDITS[name])!r})
        import model
        write({TEXT!r})
        answer(verdict())
    """
    assert worker.run(script) == ["module_edited"]
    # As if Python had failed to replace its cache; what contradicts it in memory is still seen.
    worker.write(TEXT)
    worker.remember_bytecode()
    blocked = script.replace(
        "import model",
        "sys.dont_write_bytecode = True; import model; sys.dont_write_bytecode = False",
    )
    seen = worker.run(blocked)
    assert seen == ["module_edited"] or name == "an effect at the end"


def test_an_edit_before_the_import_is_none_if_preheat_came_first(worker: Worker) -> None:
    script = f"""
        write({SAME!r})
        time.sleep(0.1)
        {{first}}
        import model
        answer(verdict())
    """
    assert worker.run(script.format(first="import preheat"), bytecode=False) == []
    assert worker.run(script.format(first="pass"), bytecode=False) == ["module_edited"]


def test_what_was_seen_before_the_edit_is_remembered(worker: Worker) -> None:
    script = f"""
        import model
        answer(verdict())
        write({SAME!r})
        answer(verdict())
    """
    assert worker.run(script, bytecode=False) == []
    worker.write(TEXT)
    again = f"""
        import importlib, model
        verdict()
        write({TEXT.replace("2.0", "4.0")!r})
        importlib.reload(model)
        write({TEXT!r})
        answer(verdict())
    """
    assert worker.run(again, bytecode=False) == ["module_edited"]


def test_a_forked_process_is_as_old_as_its_imports(worker: Worker) -> None:
    """Workers of a server that imports before it forks."""
    edited = TEXT.replace("2.0", "4.0")
    worker.package(edited)
    script = f"""
        import model
        write({edited!r})
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            answer(verdict())
            os._exit(0)
        os.waitpid(child, 0)
    """
    assert worker.run(script, bytecode=False) == ["module_edited"]
    worker.write(TEXT)
    orphan = f"""
        import model
        parent = os.getpid()
        write({edited!r})
        time.sleep(0.1)
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            answer(verdict())
    """
    assert worker.run(orphan, bytecode=False) == ["module_edited"]


def test_a_program_that_runs_as_main_is_looked_at(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        textwrap.dedent(PRELUDE)
        + "if __name__ == '__main__':\n"
        + "    FILE = Path('run.py')\n"
        + "    write(FILE.read_text() + '# more')\n"
        + "    answer(verdict())\n"
    )
    text = (tmp_path / "run.py").read_text()
    data = text.encode()
    closure = find_closure({"run": (False, data)}, [("run", "write")], inherited=())
    recorded = ModuleSource(
        module="run", root=0, path="run.py", file_sha256=sha256(data), digest=module_digest(data)
    )
    sources = Sources(modules=(recorded,), closure=closure)
    (tmp_path / "sources.json").write_bytes(msgspec.json.encode(sources))
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout) == ["module_edited"]


def test_times_decide_only_together_with_content(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(TEXT)
    loaded = types.ModuleType("a")
    loaded.__file__ = str(path)
    recorded = ModuleSource(module="a", root=0, path="a.py", file_sha256="", digest="")
    sources = Sources(modules=(recorded, msgspec.structs.replace(recorded, module="b")))
    changed_ns = path.stat().st_ctime_ns
    known = {"a": loaded}
    digests = FileDigests()
    assert edited_since_start(sources, digests, modules=known, after=lambda *_: changed_ns) == ()
    (reason,) = edited_since_start(sources, digests, modules=known, after=lambda *_: changed_ns - 1)
    assert (reason.kind, reason.symbol) == ("module_edited", "a")
    assert "a" not in running._executed  # a module without a spec may have been made anew
    # This file was written after this test's process began.
    assert interpreter_started_ns() < changed_ns


def test_a_forked_process_knows_what_it_imported_by_itself() -> None:
    """A module that was not there at the fork was imported after it; one that was, before."""
    script = """
        import os, sys, time
        import preheat, json
        from preheat.started import imported_after_ns
        before = time.time_ns()
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            import wave
            print(imported_after_ns("wave", wave) > before, imported_after_ns("json", json) > before)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        import colorsys
        print(imported_after_ns("colorsys", colorsys) > before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "False"]
