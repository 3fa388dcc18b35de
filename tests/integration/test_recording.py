"""The recorder, in real processes over real projects."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest

from preheat.manifest import DataFile, ModuleSource, Sources
from preheat.sources.check import check, variable_digest
from preheat.sources.digest import module_digest
from preheat.sources.locate import project_locator
from preheat.verdict import Reason

if TYPE_CHECKING:
    from pathlib import Path

# Runs BODY with a recorder installed; prints what the recorder says.
PROCESS = """
import json, os, sys
from pathlib import Path
import msgspec
from preheat.recording import Recorder

project = Path(sys.argv[1])
{before}
recorder = Recorder(project, search_path={search_path!r}, ignore={ignore!r}, variables={variables!r})
with recorder:
    with recorder.watching_files():
{body}
{after}
sources = recorder.sources()
answer = {{
    "sources": msgspec.to_builtins(sources),
    "late": recorder.late_modules,
    "reasons": msgspec.to_builtins(recorder.unchanged()),
    "files": {{str(path): name for path, name in recorder.executed_files().items()}},
}}
sys.__stdout__.write(json.dumps(answer))
"""


@dataclass
class Recorded:
    sources: Sources
    late: list[str]
    reasons: list[Reason]
    files: dict[str, str]

    @property
    def modules(self) -> dict[str, ModuleSource]:
        return {one.module: one for one in self.sources.modules}

    @property
    def data(self) -> dict[str, DataFile]:
        return {one.path: one for one in self.sources.data_files if one.sha256 is not None}

    @property
    def missing(self) -> set[str]:
        return {one.path for one in self.sources.data_files if one.sha256 is None}

    @property
    def variables(self) -> dict[str, str | None]:
        return {one.name: one.sha256 for one in self.sources.variables}


@dataclass
class Project:
    """A project directory, and a way to run a recording process in it."""

    path: Path
    environ: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    def record(
        self,
        body: str,
        *,
        before: str = "sys.path.insert(0, str(project))",
        after: str = "",
        search_path: tuple[str, ...] = (),
        ignore: tuple[str, ...] = (),
        variables: tuple[str, ...] = (),
    ) -> Recorded:
        program = PROCESS.format(
            before=textwrap.dedent(before),
            body=textwrap.indent(textwrap.dedent(body), " " * 8),
            after=textwrap.dedent(after),
            search_path=search_path,
            ignore=ignore,
            variables=variables,
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, str(self.path)],
            capture_output=True,
            cwd=self.path,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **self.environ},
        )
        assert done.returncode == 0, done.stderr.decode()
        answer = json.loads(done.stdout)
        return Recorded(
            msgspec.convert(answer["sources"], Sources),
            answer["late"],
            msgspec.convert(answer["reasons"], list[Reason]),
            answer["files"],
        )

    def check(self, recorded: Recorded) -> list[tuple[str, str | None]]:
        reasons = check(
            recorded.sources,
            project_locator(self.path),
            project=self.path,
            environ={**os.environ, **self.environ},
        )
        return [(reason.kind, reason.file) for reason in reasons]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.path.mkdir()
    return made


def test_modules_are_recorded_with_what_was_executed(project: Project) -> None:
    source = "import json\nfrom pkg import b\nX = 1\n"
    file = project.write("pkg/a.py", source)
    project.write("pkg/__init__.py", "")
    project.write("pkg/b.py", "Y = 2\n")
    project.write("unused.py", "Z = 3\n")
    recorded = project.record("import pkg.a")
    assert set(recorded.modules) == {"pkg", "pkg.a", "pkg.b"}
    assert recorded.sources.roots == ("",)
    assert recorded.modules["pkg.a"] == ModuleSource(
        module="pkg.a",
        root=0,
        path="pkg/a.py",
        file_sha256=hashlib.sha256(source.encode()).hexdigest(),
        digest=module_digest(source.encode()),
    )
    assert recorded.files[str(file)] == "pkg.a"
    assert recorded.late == []
    assert recorded.reasons == []
    assert project.check(recorded) == []


def test_an_edit_during_the_build_cannot_hide(project: Project) -> None:
    old = "X = 14\n"
    file = project.write("model.py", old)
    recorded = project.record(
        """
        import model
        Path(model.__file__).write_text("X = 1204\\n")
        assert model.X == 14
        """
    )
    assert file.read_text() == "X = 1204\n"
    assert recorded.modules["model"].digest == module_digest(old.encode())
    assert [(reason.kind, reason.file) for reason in recorded.reasons] == [
        ("module_edited", "model.py")
    ]
    assert project.check(recorded) == [("module_edited", "model.py")]


def test_a_comment_during_the_build_is_no_edit(project: Project) -> None:
    project.write("model.py", "X = 14\n")
    recorded = project.record('import model\nPath(model.__file__).write_text("# why\\nX = 14\\n")')
    assert recorded.reasons == []


def test_a_stale_bytecode_file_is_never_executed(project: Project) -> None:
    file = project.write("model.py", "X = 1\n")
    stamp = file.stat().st_mtime_ns
    program = "import sys; sys.path.insert(0, sys.argv[1]); import model"
    subprocess.run([sys.executable, "-c", program, str(project.path)], check=True)
    file.write_text("X = 2\n")
    os.utime(file, ns=(stamp, stamp))
    recorded = project.record("import model\nassert model.X == 2")
    assert recorded.modules["model"].digest == module_digest(b"X = 2\n")


def test_a_module_that_fails_to_import_counts(project: Project) -> None:
    project.write("broken.py", "X = (\n")
    project.write("raising.py", "raise ImportError\n")
    project.write(
        "model.py",
        """
        for name in ("broken", "raising"):
            try:
                __import__(name)
            except (ImportError, SyntaxError):
                pass
        """,
    )
    recorded = project.record("import model")
    assert set(recorded.modules) == {"broken", "model", "raising"}


def test_a_module_executed_twice_in_two_versions_is_an_edit(project: Project) -> None:
    project.write("model.py", "X = 1\n")
    recorded = project.record(
        """
        import importlib, model
        Path(model.__file__).write_text("X = 2\\n")
        importlib.reload(model)
        """
    )
    assert len(recorded.sources.modules) == 2
    assert project.check(recorded) == [("module_edited", "model.py")]


def test_the_virtual_environment_in_the_project_is_a_library(project: Project) -> None:
    own, foreign = (
        project.path / name / "lib/python3/site-packages" for name in ("own", "foreign")
    )
    project.write("own/lib/python3/site-packages/installed.py", "X = 1\n")
    project.write("foreign/lib/python3/site-packages/foreign.py", "X = 1\n")
    project.write("model.py", "import installed, foreign\n")
    recorded = project.record(
        "import model",
        before=f"""
        import site
        site.getsitepackages = lambda: [{str(own)!r}]
        sys.path[:0] = [str(project), {str(own)!r}, {str(foreign)!r}]
        """,
    )
    # A virtual environment may take in another one's libraries.
    assert set(recorded.modules) == {"model"}


def test_other_directories_are_roots_of_their_own(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Project(other).write("lib_b/sub/__init__.py", "X = 1\n")
    project.write("src/model.py", "import lib_b.sub\n")
    recorded = project.record(
        "import model",
        before=f"sys.path[:0] = [str(project / 'src'), {str(other)!r}]",
        search_path=(str(other),),
    )
    assert recorded.sources.roots == ("", str(other))
    places = {name: (one.root, one.path) for name, one in recorded.modules.items()}
    assert places == {"model": (0, "src/model.py"), "lib_b.sub": (1, "lib_b/sub/__init__.py")}
    assert project.check(recorded) == []
    # A namespace package that becomes a regular one runs other code.
    Project(other).write("lib_b/__init__.py", "")
    assert project.check(recorded) == [("module_shadowed", str(other / "lib_b/__init__.py"))]


def test_what_was_imported_before_is_taken_from_its_file(project: Project) -> None:
    project.write("early.py", "X = 1\n")
    project.write("model.py", "import early\n")
    recorded = project.record(
        "import model", before="sys.path.insert(0, str(project)); import early"
    )
    assert set(recorded.modules) == {"early", "model"}
    assert recorded.late == ["early"]


def test_code_that_is_loaded_by_hand_is_data(project: Project) -> None:
    project.write("plugin.py", "X = 1\n")
    project.write("fragment.py", "Y = 1\n")
    project.write(
        "model.py",
        """
        import importlib.util, pathlib, sys
        here = pathlib.Path(__file__).parent
        spec = importlib.util.spec_from_file_location("by_hand", here / "plugin.py")
        module = sys.modules["by_hand"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        exec((here / "fragment.py").read_text())
        """,
    )
    recorded = project.record("import model")
    assert set(recorded.modules) == {"model"}
    assert set(recorded.data) == {"fragment.py", "plugin.py"}
    project.write("fragment.py", "Y = 2\n")
    assert project.check(recorded) == [("data_changed", "fragment.py")]


def test_an_import_that_found_nothing_is_remembered(project: Project) -> None:
    project.write(
        "model.py",
        """
        try:
            import preheat_fast_kernels as kernels
        except ImportError:
            kernels = None
        """,
    )
    recorded = project.record("import model")
    assert {"preheat_fast_kernels.py", "preheat_fast_kernels/__init__.py"} <= recorded.missing
    assert project.check(recorded) == []
    project.write("preheat_fast_kernels.py", "")
    assert project.check(recorded) == [("module_shadowed", "preheat_fast_kernels.py")]


def test_a_file_that_would_hide_a_library_is_remembered(project: Project) -> None:
    project.write("model.py", "import colorsys\n")
    recorded = project.record("import model")
    assert project.check(recorded) == []
    project.write("colorsys.py", "")
    assert project.check(recorded) == [("module_shadowed", "colorsys.py")]


def test_a_package_that_would_hide_a_module_is_remembered(project: Project) -> None:
    project.write("model.py", "X = 1\n")
    recorded = project.record("import model")
    project.write("model/__init__.py", "X = 1\n")
    assert project.check(recorded) == [("module_shadowed", "model/__init__.py")]


def test_files_read_on_import_and_construction(project: Project, tmp_path: Path) -> None:
    for name in ("a.json", "b.bin", "c.txt", "later.txt", "cache/big.bin"):
        project.write(name, name)
    outside = tmp_path / "outside.json"
    outside.write_text("1")
    project.write(
        "model.py",
        """
        import os, pathlib, tempfile
        here = pathlib.Path(__file__).parent
        A = open(here / "a.json").read()
        descriptor = os.open(here / "b.bin", os.O_RDONLY); os.close(descriptor)
        open("c.txt", "rb").close()
        (here / "cache" / "big.bin").read_bytes()
        open("/proc/self/stat").close()
        open(os.__file__).close()
        (here / "output.txt").write_text("made")
        (here / "output.txt").read_text()
        with open(here / "a.json", "r") as again: pass
        """,
    )
    recorded = project.record(
        "import model", after="open(project / 'later.txt').close()", ignore=("cache",)
    )
    assert set(recorded.data) == {"a.json", "b.bin", "c.txt"}
    assert recorded.data["a.json"] == DataFile(
        root=0, path="a.json", sha256=hashlib.sha256(b"a.json").hexdigest(), size=6
    )
    assert recorded.reasons == []
    project.write("b.bin", "new")
    assert project.check(recorded) == [("data_changed", "b.bin")]


def test_a_data_file_edited_during_the_build_is_seen(project: Project) -> None:
    project.write("a.json", "1")
    project.write("model.py", "A = open('a.json').read()\n")
    recorded = project.record("import model\nopen('a.json', 'w').write('2')")
    assert [(reason.kind, reason.file) for reason in recorded.reasons] == [
        ("data_changed", "a.json")
    ]


def test_files_that_were_looked_for(project: Project) -> None:
    project.write("asked.txt", "1")
    project.write("linked.txt", "1")
    (project.path / "link.txt").symlink_to("linked.txt")
    project.write(
        "model.py",
        """
        import os.path, pathlib
        here = pathlib.Path(__file__).parent
        try:
            open(here / "override.json")
        except FileNotFoundError:
            pass
        assert not os.path.exists("tuned.json")
        assert not pathlib.Path("other.json").is_file()
        assert os.path.isfile("asked.txt")
        open("link.txt").close()
        try:
            open("made.json")
        except FileNotFoundError:
            open("made.json", "w").write("cached")
        """,
    )
    recorded = project.record("import model")
    assert {"override.json", "tuned.json", "other.json"} <= recorded.missing
    assert "made.json" not in recorded.missing
    assert set(recorded.data) == {"asked.txt", "link.txt"}
    assert recorded.reasons == []
    project.write("tuned.json", "")
    (project.path / "link.txt").unlink()
    (project.path / "link.txt").symlink_to("model.py")
    assert sorted(project.check(recorded)) == [
        ("data_appeared", "tuned.json"),
        ("data_changed", "link.txt"),
    ]


def test_an_extension_module_is_data(project: Project) -> None:
    project.write("native.abi3.so", "not really")
    project.write(
        "model.py",
        """
        try:
            import native
        except ImportError:
            pass
        """,
    )
    recorded = project.record("import model")
    assert "native.abi3.so" in recorded.data


def test_a_shared_library_that_is_loaded_is_data(project: Project) -> None:
    project.write("libown.so", "not really")
    project.write(
        "model.py",
        """
        import contextlib, ctypes, pathlib
        here = pathlib.Path(__file__).parent
        for name in (here / "libown.so", "libno-such-library.so", None):
            with contextlib.suppress(OSError):
                ctypes.CDLL(name if name is None else str(name))
        """,
    )
    recorded = project.record("import model")
    assert "libown.so" in recorded.data
    assert "libno-such-library.so" not in recorded.missing
    project.write("libown.so", "another one")
    assert project.check(recorded) == [("data_changed", "libown.so")]


def test_variables_that_user_code_asks_for(project: Project) -> None:
    project.environ = {"ASKED": "1", "GOT": "2", "COPIED": "3", "GIVEN": "4", "HOME": "/nowhere"}
    project.write(
        "model.py",
        """
        import os, os.path
        os.environ["ASKED"]
        os.environ.get("GOT")
        os.getenv("NOT_SET", "x")
        "ALSO_NOT_SET" in os.environ
        dict(os.environ); {**os.environ}; os.environ.copy(); list(os.environ.items())
        os.path.expanduser("~"); os.environ["HOME"]
        """,
    )
    recorded = project.record(
        "import model",
        after="assert type(os.environ).__getitem__.__module__ == 'os'; os.environ.get('AFTER')",
        variables=("GIVEN", "GIVEN_UNSET"),
    )
    assert recorded.variables == {
        "ASKED": variable_digest("1"),
        "GOT": variable_digest("2"),
        "NOT_SET": None,
        "ALSO_NOT_SET": None,
        "GIVEN": variable_digest("4"),
        "GIVEN_UNSET": None,
    }
    project.environ["GOT"] = "other"
    assert project.check(recorded) == [("variable_changed", None)]


def test_the_same_project_gives_the_same_snapshot(project: Project) -> None:
    project.write("a.txt", "1")
    for name in "bcdef":
        project.write(f"{name}.py", "open('a.txt').close()\n")
    body = "import b, c, d, e, f"
    assert project.record(body).sources == project.record("import f, e, d, c, b").sources


def test_a_project_behind_a_symbolic_link(project: Project, tmp_path: Path) -> None:
    project.write("model.py", "open('a.txt').close()\n")
    project.write("a.txt", "1")
    link = Project(tmp_path / "link")
    link.path.symlink_to(project.path)
    recorded = link.record("import model", before="sys.path.insert(0, str(project.resolve()))")
    assert recorded.sources.roots == ("",)
    assert set(recorded.modules) == {"model"}
    assert set(recorded.data) == {"a.txt"}
    assert link.check(recorded) == []


def test_import_hooks_of_the_users_own_keep_working(project: Project) -> None:
    project.write("hooked.py", "X = 1\n")
    project.write(
        "hook.py",
        """
        import sys
        from importlib.machinery import PathFinder, SourceFileLoader

        class Loader(SourceFileLoader):
            def source_to_code(self, data, path, **kwargs):
                return super().source_to_code(data.replace(b"1", b"2"), path, **kwargs)

        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                spec = PathFinder.find_spec(name, path, target)
                if name == "hooked":
                    spec.loader = Loader(name, spec.origin)
                return spec

        sys.meta_path.insert(0, Finder)
        """,
    )
    recorded = project.record("import hook, hooked\nassert hooked.X == 2")
    assert set(recorded.modules) == {"hook", "hooked"}
    assert recorded.late == ["hooked"]
