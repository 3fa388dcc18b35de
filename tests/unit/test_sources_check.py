"""Whether a snapshot still holds: every kind of reason, the two locators, and the cache of digests."""

from __future__ import annotations

import hashlib
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.manifest import DataFile, ModuleSource, Sources, Variable
from preheat.sources.check import check, variable_digest
from preheat.sources.digest import module_digest
from preheat.sources.files import LARGE_BYTES, UNREADABLE, FileDigests, data_digest
from preheat.sources.locate import (
    find_module,
    import_locator,
    project_directory,
    project_locator,
)

if TYPE_CHECKING:
    import io

    from preheat.verdict import Reason

SOURCE = b"X = 1\n"


def module(path: str, name: str, source: bytes = SOURCE, root: int = 0) -> ModuleSource:
    return ModuleSource(
        module=name,
        root=root,
        path=path,
        file_sha256=hashlib.sha256(source).hexdigest(),
        digest=module_digest(source),
    )


def write(path: Path, content: bytes = SOURCE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def kinds(reasons: tuple[Reason, ...]) -> list[tuple[str, str | None]]:
    return [(reason.kind, reason.file) for reason in reasons]


def check_in(project: Path, sources: Sources, *search_path: str) -> list[tuple[str, str | None]]:
    return kinds(check(sources, project_locator(project, search_path), project=project, environ={}))


def test_unchanged_needs_no_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pkg" / "a.py")
    monkeypatch.setattr("preheat.sources.files.module_digest", lambda _: pytest.fail("parsed"))
    assert check_in(tmp_path, Sources(modules=(module("pkg/a.py", "pkg.a"),))) == []


def test_a_comment_is_no_edit_and_a_value_is_one(tmp_path: Path) -> None:
    sources = Sources(modules=(module("a.py", "a"),))
    write(tmp_path / "a.py", b"# why\n\n" + SOURCE)
    assert check_in(tmp_path, sources) == []
    write(tmp_path / "a.py", b"X = 2\n")
    assert check_in(tmp_path, sources) == [("module_edited", "a.py")]


def test_a_broken_file_is_an_edit(tmp_path: Path) -> None:
    write(tmp_path / "a.py", b"X = (\n")
    assert check_in(tmp_path, Sources(modules=(module("a.py", "a"),))) == [
        ("module_edited", "a.py")
    ]


def test_a_deleted_module(tmp_path: Path) -> None:
    sources = Sources(modules=(module("pkg/a.py", "pkg.a"),))
    assert check_in(tmp_path, sources) == [("module_deleted", "pkg/a.py")]


def test_a_module_that_moved_along_the_search_path_is_no_edit(tmp_path: Path) -> None:
    write(tmp_path / "src" / "pkg" / "__init__.py")
    sources = Sources(modules=(module("pkg.py", "pkg"),))
    assert check_in(tmp_path, sources) == [("module_deleted", "pkg.py")]
    assert check_in(tmp_path, sources, "src") == []


def test_modules_of_other_roots_are_found_where_they_were(tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other / "b.py")
    sources = Sources(roots=("", str(other)), modules=(module("b.py", "b", root=1),))
    project = tmp_path / "project"
    assert check_in(project, sources) == []
    write(other / "b.py", b"X = 3")
    assert check_in(project, sources) == [("module_edited", str(other / "b.py"))]


def test_a_worker_that_finds_another_file_first(tmp_path: Path) -> None:
    recorded = write(tmp_path / "a.py")
    found = write(tmp_path / "early" / "a.py", b"X = 9")
    sources = Sources(modules=(module("a.py", "a"),))
    (reason,) = check(sources, lambda _: found, project=tmp_path, environ={})
    assert (reason.kind, reason.file) == ("module_shadowed", "early/a.py")
    assert recorded.name in reason.detail
    found.write_bytes(SOURCE)
    assert check(sources, lambda _: found, project=tmp_path, environ={}) == ()


def test_data_files(tmp_path: Path) -> None:
    write(tmp_path / "c.json", b"{}")
    (tmp_path / "d").mkdir()
    digest = data_digest(tmp_path / "c.json")
    sources = Sources(
        data_files=(
            DataFile(root=0, path="c.json", sha256=digest),
            DataFile(root=0, path="missing.json", sha256=None),
            DataFile(root=0, path="fast.py", sha256=None),
            DataFile(root=0, path="d", sha256=None),
        )
    )
    assert check_in(tmp_path, sources) == []
    write(tmp_path / "c.json", b"[]")
    write(tmp_path / "missing.json")
    write(tmp_path / "fast.py")
    assert check_in(tmp_path, sources) == [
        ("data_changed", "c.json"),
        ("data_appeared", "missing.json"),
        ("module_shadowed", "fast.py"),
    ]
    (tmp_path / "c.json").unlink()
    assert check_in(tmp_path, sources)[0] == ("data_deleted", "c.json")


def test_an_unreadable_file_counts_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.py")
    sources = Sources(
        modules=(module("a.py", "a"),),
        data_files=(DataFile(root=0, path="a.py", sha256=data_digest(path)),),
    )

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    assert FileDigests().sha256(path) == UNREADABLE
    assert check_in(tmp_path, sources) == [("module_edited", "a.py"), ("data_changed", "a.py")]


def test_variables_by_digest_only() -> None:
    sources = Sources(
        variables=(
            Variable(name="A", sha256=variable_digest("secret")),
            Variable(name="B", sha256=variable_digest(None)),
        )
    )
    locate = project_locator(Path("/nowhere"))
    assert check(sources, locate, environ={"A": "secret"}) == ()
    reasons = check(sources, locate, environ={"B": ""})
    assert [(r.kind, r.symbol) for r in reasons] == [
        ("variable_changed", "A"),
        ("variable_changed", "B"),
    ]
    assert "secret" not in str(reasons)


def test_data_of_a_project_that_cannot_be_found_counts_as_gone() -> None:
    sources = Sources(data_files=(DataFile(root=0, path="c.json", sha256=None),))
    assert kinds(check(sources, lambda _: None, environ={})) == [("data_deleted", "c.json")]


def test_a_copied_project_is_found_by_its_modules(tmp_path: Path) -> None:
    for copy in ("here", "there"):
        write(tmp_path / copy / "src" / "pkg" / "a.py")
        write(tmp_path / copy / "c.json", copy.encode())
    recorded = DataFile(root=0, path="c.json", sha256=data_digest(tmp_path / "here" / "c.json"))
    sources = Sources(modules=(module("src/pkg/a.py", "pkg.a"),), data_files=(recorded,))
    here = import_locator({}, [str(tmp_path / "here" / "src")])
    there = import_locator({}, [str(tmp_path / "there" / "src")])
    assert project_directory(sources, there) == tmp_path / "there"
    assert check(sources, here, environ={}) == ()
    assert kinds(check(sources, there, environ={})) == [("data_changed", "c.json")]


def test_import_locator_prefers_what_is_loaded(tmp_path: Path) -> None:
    loaded = types.ModuleType("pkg.a")
    loaded.__file__ = str(write(tmp_path / "loaded" / "a.py"))
    write(tmp_path / "path" / "pkg" / "a.py")
    wanted = module("pkg/a.py", "pkg.a")
    search_path = [str(tmp_path / "path")]
    assert import_locator({"pkg.a": loaded}, search_path)(wanted) == Path(loaded.__file__)
    assert import_locator({}, search_path)(wanted) == tmp_path / "path" / "pkg" / "a.py"


def test_import_locator_knows_a_module_that_runs_as_main(tmp_path: Path) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = str(write(tmp_path / "train.py"))
    assert import_locator({"__main__": main}, [])(module("train.py", "train")) == Path(
        main.__file__
    )
    assert import_locator({"__main__": main}, [])(module("other.py", "other")) is None


def test_finding_a_module_imports_no_parent(tmp_path: Path) -> None:
    write(tmp_path / "ns" / "preheat_parent" / "__init__.py", b"raise SystemExit")
    write(tmp_path / "ns" / "preheat_parent" / "inner.py")
    found = find_module("ns.preheat_parent.inner", [str(tmp_path)])
    assert found == tmp_path / "ns" / "preheat_parent" / "inner.py"
    assert "ns.preheat_parent" not in sys.modules
    assert find_module("ns.preheat_parent.missing", [str(tmp_path)]) is None
    assert find_module("ns.preheat_parent.inner.deeper", [str(tmp_path)]) is None
    assert find_module("ns", [str(tmp_path)]) is None


class Reads:
    """A cache whose clock is far enough from the files' times, and a count of its reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_later: float) -> None:
        self.count = 0

        def counted(file: io.BufferedReader, _size: int) -> str:
            self.count += 1
            return hashlib.sha256(file.read()).hexdigest()

        monkeypatch.setattr("preheat.sources.files._whole", counted)
        self.now_ns = 0
        self.later_ns = int(seconds_later * 1e9)
        self.digests = FileDigests(clock_ns=lambda: self.now_ns)

    def sha256(self, path: Path) -> str | None:
        found = path.stat()
        self.now_ns = max(found.st_mtime_ns, found.st_ctime_ns) + self.later_ns
        return self.digests.sha256(path)


def test_a_file_that_was_left_alone_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.py")
    reads = Reads(monkeypatch, seconds_later=2)
    assert reads.sha256(path) == reads.sha256(path) == hashlib.sha256(SOURCE).hexdigest()
    assert reads.count == 1


def test_a_file_that_was_just_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.py")
    reads = Reads(monkeypatch, seconds_later=1.9)
    first = reads.sha256(path)
    path.write_bytes(b"X = 2\n")
    assert reads.sha256(path) != first
    assert reads.count == 2


def test_an_edit_that_restores_size_and_mtime_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.py")
    os.utime(path, ns=(10**18, 10**18))
    reads = Reads(monkeypatch, seconds_later=10)
    first = reads.sha256(path)
    replacement = write(tmp_path / "b.py", b"X = 2\n")
    os.utime(replacement, ns=(10**18, 10**18))
    replacement.replace(path)
    assert reads.sha256(path) != first


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    path = write(tmp_path / "a.py")
    digests = FileDigests(clock_ns=lambda: 2**62)
    assert digests.sha256(path) and digests.module(path) and digests.data(path)
    path.unlink()
    assert digests.sha256(path) is digests.module(path) is digests.data(path) is None
    assert digests.size(path) == 0
    assert digests.sha256(tmp_path) is None


def test_large_files_are_sampled(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"

    def digest(size: int, edit_at: int | None = None) -> str | None:
        with path.open("wb") as file:
            file.truncate(size)
            if edit_at is not None:
                file.seek(edit_at)
                file.write(b"x")
        return data_digest(path)

    size = LARGE_BYTES + 1
    base = digest(size)
    assert base != digest(size + 1)
    assert base != digest(size, 0)
    assert base != digest(size, size - 1)
    assert base == digest(size)
