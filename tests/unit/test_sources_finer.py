"""The finer rule on files: ``check`` with a closure, what it shares between packages, ``explain``."""

from __future__ import annotations

import hashlib
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preheat.manifest import DataFile, ModuleSource, Sources
from preheat.sources.check import check
from preheat.sources.closure import find_closure
from preheat.sources.compare import file_changes
from preheat.sources.digest import compiled, exact_digest, module_digest
from preheat.sources.explain import Explanation, SymbolReport, explain, if_edited
from preheat.sources.files import SETTLE_NS, FileDigests
from preheat.sources.locate import project_locator
from preheat.sources.selection import Surroundings
from preheat.sources.tables import read_table
from preheat.sources.textdiff import LETTERS, LINES, TwoTexts
from preheat.sources.units import ModuleUnits

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.sources.units import Closure

FILES = {
    "pkg/__init__.py": "",
    "pkg/model.py": """
        from pkg.ops import scale

        SPARE = 1


        def forward(x):
            return scale(x) + 1


        def make():
            return forward
        """,
    "pkg/ops.py": """
        def scale(x):
            # twice
            return x * 2


        def unused(x):
            return x
        """,
}


class Project:
    """Files on disk and the snapshot that a build of them would record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, bytes] = {}
        for name, text in FILES.items():
            self.write(name, textwrap.dedent(text).lstrip())
            self.texts[name] = (path / name).read_bytes()
        modules = {
            name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
            for name in FILES
        }
        closure = find_closure(
            {
                module: (name.endswith("__init__.py"), self.texts[name])
                for module, name in modules.items()
            },
            [("pkg.model", "make"), ("pkg.model", "forward"), ("pkg.ops", "scale")],
            inherited=(),
        )
        recorded = tuple(
            ModuleSource(
                module=module,
                root=0,
                path=name,
                file_sha256=hashlib.sha256(self.texts[name]).hexdigest(),
                digest=module_digest(self.texts[name]),
            )
            for module, name in modules.items()
        )
        absent = DataFile(root=0, path="pkg/ops/__init__.py", sha256=None)
        self.sources = Sources(modules=recorded, data_files=(absent,), closure=closure)

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def check(self, digests: FileDigests | None = None) -> list[str]:
        locate = project_locator(self.path)
        found = check(self.sources, locate, project=self.path, digests=digests, environ={})
        return [f"{one.kind} {one.symbol or one.file}" for one in found]

    def with_closure(self, **changes: object) -> Sources:
        assert self.sources.closure is not None
        closure: Closure = msgspec.structs.replace(self.sources.closure, **changes)
        return msgspec.structs.replace(self.sources, closure=closure)

    def explain(self, *, text: bool = True) -> Explanation:
        return explain(
            self.sources,
            project_locator(self.path),
            project=self.path,
            environ={},
            old_text=(lambda module: self.texts[module.path]) if text else None,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_only_what_is_in_the_closure_counts(project: Project) -> None:
    project.edit("pkg/ops.py", "    return x\n", "    return -x\n")
    project.edit("pkg/model.py", "SPARE = 1", "# nothing")
    assert project.check() == []
    project.edit("pkg/ops.py", "x * 2", "x * 3")
    assert project.check() == ["symbol_edited pkg.ops.scale"]


def test_a_reason_names_file_symbol_and_lines(project: Project) -> None:
    project.edit(
        "pkg/ops.py",
        "def scale(x):\n    # twice\n    return x * 2",
        "\n\ndef scale(x):\n    return x * 3",
    )
    (reason,) = check(
        project.sources, project_locator(project.path), project=project.path, environ={}
    )
    assert (reason.kind, reason.file, reason.symbol, reason.detail) == (
        "symbol_edited",
        "pkg/ops.py",
        "pkg.ops.scale",
        "lines 3-4, was in lines 1-3",
    )


def test_a_module_that_becomes_a_package_with_the_same_text_is_the_same(project: Project) -> None:
    (project.path / "pkg/ops").mkdir()
    (project.path / "pkg/ops.py").rename(project.path / "pkg/ops/__init__.py")
    assert project.check() == []
    project.edit("pkg/ops/__init__.py", "x * 2", "x * 3")
    assert project.check() == ["symbol_edited pkg.ops.scale"]


def test_a_module_that_shadows_another_is_compared(project: Project) -> None:
    project.write("pkg/ops/__init__.py", "def scale(x):\n    return x\n")
    assert project.check() == ["module_shadowed pkg/ops/__init__.py"]


def test_a_deleted_module(project: Project) -> None:
    (project.path / "pkg/ops.py").unlink()
    assert project.check() == ["module_deleted pkg.ops"]


def test_another_release_of_python_compares_whole_modules(project: Project) -> None:
    project.edit("pkg/ops.py", "    return x\n", "    return -x\n")
    assert project.check() == []
    project.sources = project.with_closure(python="3.0")
    assert project.check() == ["module_edited pkg.ops"]


def test_a_program_that_reads_its_text_counts_by_its_bytes(project: Project) -> None:
    project.sources = project.with_closure(text=True)
    assert project.check() == []
    project.edit("pkg/ops.py", "# twice", "# two times")
    assert project.check() == ["module_edited pkg.ops"]


def test_a_closure_survives_the_manifest(project: Project) -> None:
    encoded = msgspec.json.encode(project.sources)
    assert msgspec.json.decode(encoded, type=Sources) == project.sources


def test_a_file_is_parsed_once_for_all_packages(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counting(plain: Callable[..., object]) -> Callable[..., object]:
        def counted(source: bytes, **more: object) -> object:
            nonlocal read
            read += 1
            return plain(source, **more)

        return counted

    monkeypatch.setattr("preheat.sources.tables.read_table", counting(read_table))
    project.edit("pkg/ops.py", "x * 2", "x * 3")
    digests = FileDigests()
    with digests.one_moment():
        for _ in range(20):
            assert project.check(digests) == ["symbol_edited pkg.ops.scale"]
    assert read == 1


def test_a_comment_needs_no_table(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preheat.sources.tables.read_table", lambda *_, **__: pytest.fail("read"))
    project.edit("pkg/ops.py", "# twice", "# two times")
    project.edit("pkg/model.py", "SPARE = 1", "SPARE = 1  # not used")
    assert project.check() == []


def test_the_same_bytecode_as_a_package_may_import_other_things(project: Project) -> None:
    relative = "from .ops import scale\n"
    one = ModuleUnits(module="m", code=exact_digest(compiled(relative.encode())), package=False)
    around = Surroundings(packages={"m": False}, attributes=set())
    (project.path / "m").mkdir()
    for name, changed in (("m.py", False), ("m/__init__.py", True)):
        project.write(name, relative)
        found = file_changes(one, project.path / name, FileDigests(), around)
        assert bool(found) == changed


def test_at_one_moment_files_are_looked_at_once(project: Project) -> None:
    digests = FileDigests(clock_ns=lambda: sys.maxsize - 2 * SETTLE_NS)
    with digests.one_moment():
        assert project.check(digests) == []
        project.edit("pkg/ops.py", "x * 2", "x * 3")
        assert project.check(digests) == []
    assert project.check(digests) == ["symbol_edited pkg.ops.scale"]


def test_explain_shows_the_edit(project: Project) -> None:
    project.edit("pkg/ops.py", "x * 2", "x * 3")
    explanation = project.explain()
    assert [reason.kind for reason in explanation.reasons] == ["symbol_edited"]
    (report,) = explanation.symbols
    assert report == SymbolReport(
        kind="symbol_edited",
        stale=True,
        file="pkg/ops.py",
        module="pkg.ops",
        symbol="scale",
        before=(1, 3),
        now=(1, 3),
        diff=(
            "@@ -2,2 +2,2 @@",
            "     # twice",
            "-    return x * 2",
            "+    return x * 3",
        ),
    )
    (report,) = project.explain(text=False).symbols
    assert (report.kind, report.diff) == ("symbol_edited", ())


def test_explain_shows_what_makes_no_difference(project: Project) -> None:
    project.edit("pkg/ops.py", "def scale", "# moved down\ndef scale")
    project.edit("pkg/model.py", "scale(x) + 1", "scale(\n        x\n    ) + 1")
    explanation = project.explain()
    assert explanation.reasons == ()
    assert [(one.kind, one.symbol, one.stale) for one in explanation.symbols] == [
        ("symbol_reformatted", "forward", False),
        ("symbol_moved", "make", False),
        ("symbol_moved", "scale", False),
    ]


def test_explain_shows_what_was_added_and_deleted(project: Project) -> None:
    project.edit("pkg/model.py", "def forward", "def backward")
    project.write("pkg/ops.py", project.texts["pkg/ops.py"].decode() + "\n\nscale = abs\n")
    found = [(one.kind, one.symbol, one.before, one.now) for one in project.explain().symbols]
    assert ("symbol_deleted", "forward", (6, 7), None) in found
    assert ("symbol_added", "scale", None, (10, 10)) in found


def test_explain_names_an_edited_file_in_which_nothing_counts(project: Project) -> None:
    project.edit("pkg/ops.py", "    return x\n", "    return -x\n")
    explanation = project.explain()
    assert explanation.reasons == ()
    (report,) = explanation.symbols
    assert (report.kind, report.file, report.stale) == ("module_unaffected", "pkg/ops.py", False)


def test_explain_shows_modules_that_count_as_a_whole(project: Project) -> None:
    project.sources = project.with_closure(python="3.0")
    project.edit("pkg/ops.py", "x * 2", "x * 3")
    (report,) = project.explain().symbols
    assert (report.kind, report.module, report.symbol) == ("module_edited", "pkg.ops", "")
    assert "+    return x * 3" in report.diff
    project.edit("pkg/ops.py", "x * 3", "x * 2  # again")
    assert [one.kind for one in project.explain().symbols] == ["module_unaffected"]
    project.write("pkg/ops.py", "def scale(:")
    assert [one.kind for one in project.explain().symbols] == ["module_edited"]


def test_explain_shows_text_that_does_not_compile_once(project: Project) -> None:
    project.write("pkg/ops.py", "def scale(:\n")
    (report,) = project.explain().symbols
    assert (report.kind, report.detail) == ("module_edited", "is no Python that can be compiled")
    assert "+def scale(:" in report.diff


def test_explain_shows_modules_that_are_gone_or_shadowed(project: Project) -> None:
    project.write("pkg/ops/__init__.py", "def scale(x):\n    return x\n")
    shadow = str(project.path / "pkg/ops/__init__.py")
    (report,) = project.explain().symbols
    assert (report.kind, report.file) == ("module_shadowed", "pkg/ops/__init__.py")
    # A worker sees what it would import.
    explanation = explain(
        project.sources,
        lambda module: Path(shadow) if module.module == "pkg.ops" else None,
        project=project.path,
        environ={},
    )
    assert [(one.kind, one.file, one.symbol) for one in explanation.symbols] == [
        ("module_shadowed", "pkg/ops/__init__.py", ""),
        ("symbol_edited", "pkg/ops/__init__.py", "scale"),
    ]
    (project.path / "pkg/ops/__init__.py").unlink()
    (project.path / "pkg/ops").rmdir()
    (project.path / "pkg/ops.py").unlink()
    (report,) = project.explain().symbols
    assert (report.kind, report.file, report.diff) == ("module_deleted", "pkg/ops.py", ())


def test_a_diff_is_short(project: Project) -> None:
    lines = "".join(f"    x = x + {index}\n" for index in range(100))
    project.edit("pkg/ops.py", "    return x * 2", lines + f"    return x * {'9' * 500}")
    (report,) = [one for one in project.explain().symbols if one.stale]
    assert len(report.diff) == LINES
    assert report.diff[-1].endswith("lines more")
    assert max(map(len, report.diff)) <= LETTERS + 3
    lines = "".join(f"    x = x + {index}\n" for index in range(5000))
    project.edit("pkg/ops.py", "    x = x + 0\n", lines)
    (report,) = [one for one in project.explain().symbols if one.stale]
    assert report.diff == ("... 3 lines before, 5102 now",)


def test_lines_of_a_diff_are_those_of_the_parser() -> None:
    old = b"A = 'x\x0cy'\r\nB = 1\r\n"
    texts = TwoTexts.of(old, b"A = 'x\x0cy'\nB = 2\n")
    assert texts.differ((2, 2), (2, 2)) == ("@@ -1 +1 @@", "-B = 1", "+B = 2")
    assert texts.differ((1, 1), (1, 1)) == ()
    assert TwoTexts.of(None, b"B = 2").differ_whole() == ()


def test_what_an_edit_could_touch(project: Project) -> None:
    touch = if_edited(project.sources, project.path / "pkg/ops.py", project.path)
    assert [unit.symbol for unit in touch.counts] == ["scale"]
    assert touch.free == ("unused",)
    assert "scale" in touch.names
    assert not touch.whole
    assert if_edited(project.sources, project.path / "pkg/ops/__init__.py", project.path).data
    nothing = if_edited(project.sources, project.path / "README.md", project.path)
    assert (nothing.counts, nothing.names, nothing.whole, nothing.data) == ((), (), False, False)
    project.sources = project.with_closure(text=True)
    assert if_edited(project.sources, project.path / "pkg/ops.py", project.path).whole
