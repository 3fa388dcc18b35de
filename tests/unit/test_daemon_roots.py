"""What is watched, what a target's sources are, where polling is needed, what processes inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preheat.manifest import DataFile, ModuleSource, Sources
from preheat.sources.files import FileDigests
from preheatd import mounts, surroundings
from preheatd.caches import CompilerCaches
from preheatd.config import Config, Target
from preheatd.fingerprint import MISSING, SourceFiles, python_files, sources_state
from preheatd.roots import Root, minimal, source_files, target_roots, watched_roots

if TYPE_CHECKING:
    from pathlib import Path


def config(project: Path, watch: tuple[Path, ...] | None = None) -> Config:
    target = Target(name="t", factory="app.warm:t", python="python", cwd=project)
    return Config(
        file=project / "preheat.toml",
        project=project,
        store=project / "store",
        targets=(target,),
        watch=watch,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for folder in ("app", "data", "app/__pycache__", "app/.hidden"):
        (place / folder).mkdir(parents=True)
        (place / folder / "file.py").write_text("x = 1")
    return place


def test_before_the_first_package_the_factory_tells(project: Path) -> None:
    one = config(project)
    assert target_roots(one, one.targets[0], None, []) == (Root(project / "app", True),)


def test_a_source_directory_on_the_search_path_is_found(project: Path) -> None:
    (project / "app").rename(project / "moved")
    (project / "src" / "app").mkdir(parents=True)
    one = config(project)
    found = target_roots(one, one.targets[0], None, [str(project / "src")])
    assert found == (Root(project / "src" / "app", True),)


def test_what_is_configured_replaces_what_is_guessed(project: Path) -> None:
    one = config(project, (project / "data", project / "app" / "file.py"))
    found = target_roots(one, one.targets[0], None, [])
    assert set(found) == {Root(project / "data", True), Root(project / "app", False)}


def test_the_project_and_the_parents_are_watched_too(project: Path) -> None:
    found = watched_roots(config(project), [(Root(project / "app", True),)])
    assert set(found) == {Root(project / "app", True), Root(project, False)}


def test_what_does_not_exist_yet_is_awaited_above(project: Path) -> None:
    found = watched_roots(config(project), [(Root(project / "new" / "deep", True),)])
    assert found == (Root(project, False),)


def test_directories_inside_others_are_left_out(tmp_path: Path) -> None:
    roots = [
        Root(tmp_path, False),
        Root(tmp_path / "a", True),
        Root(tmp_path / "a", False),
        Root(tmp_path / "a" / "b", True),
        Root(tmp_path / "ab", False),
    ]
    assert set(minimal(roots)) == {
        Root(tmp_path, False),
        Root(tmp_path / "a", True),
        Root(tmp_path / "ab", False),
    }


def test_the_snapshot_names_files(tmp_path: Path) -> None:
    module = ModuleSource(module="m", root=0, path="app/m.py", file_sha256="", digest="")
    data = DataFile(root=1, path="x.json", sha256=None)
    sources = Sources(roots=("", "/outside"), modules=(module,), data_files=(data,))
    assert source_files(tmp_path, sources) == {f"{tmp_path}/app/m.py", "/outside/x.json"}


def test_the_state_of_sources_follows_content(project: Path) -> None:
    roots = [Root(project / "app", True)]
    digests = FileDigests()
    target = config(project).targets[0]
    data = [str(project / "data" / "d.json")]

    before = SourceFiles(digests).of(roots, data)
    assert set(before.files) == {str(project / "app" / "file.py"), *data}
    assert before.files[data[0]] == MISSING

    (project / "app" / "file.py").write_text("x = 2")
    after = SourceFiles(digests).of(roots, data)
    assert sources_state(target, before) != sources_state(target, after)

    (project / "app" / "file.py").write_text("x = 1")
    again = SourceFiles(digests).of(roots, data)
    assert sources_state(target, before) == sources_state(target, again)

    (project / "data").mkdir(exist_ok=True)
    (project / "data" / "d.json").write_text("{}")
    with_data = SourceFiles(digests).of(roots, data)
    assert sources_state(target, with_data) != sources_state(target, again)


def test_targets_that_share_a_directory_share_the_walk(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = []
    monkeypatch.setattr(
        "preheatd.fingerprint.python_files",
        lambda roots: walked.extend(roots) or python_files(roots),
    )
    app, other = Root(project / "app", True), Root(project, False)
    files = SourceFiles(FileDigests())
    first, second, third = files.of([app]), files.of([app]), files.of([app, other])
    assert first == second
    assert set(first.files) <= set(third.files)
    assert walked == [app, other]


MOUNTS = r"""
22 1 8:1 / / rw - ext4 /dev/sda rw
23 22 0:5 / /home rw shared:1 - nfs4 server:/home rw
24 23 0:6 / /home/with\040space rw - fuse.sshfs x rw
25 23 0:7 / /home/local rw - btrfs x rw
26 22 0:8 / /over rw - ext4 x rw
27 22 0:9 / /over rw - cifs x rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind", "remote"),
    [
        ("/usr", "ext4", False),
        ("/", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/x", "nfs4", True),
        ("/homely", "ext4", False),
        ("/home/with space/x", "fuse.sshfs", True),
        ("/home/local/x", "btrfs", False),
        ("/over/x", "cifs", True),
    ],
)
def test_the_file_system_says_whether_to_poll(path: str, kind: str, remote: bool) -> None:
    assert mounts.file_system_type(MOUNTS, path) == kind
    assert mounts.is_remote(kind) is remote


def test_what_a_process_inherits(project: Path) -> None:
    target = Target(
        name="t", factory="a:b", python="p", cwd=project, env={"A": "own", "PYTHONPATH": "lib"}
    )
    environ = {"A": "outer", "HOME": "/h", "NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1"}
    variables = surroundings.target_environment(environ, target, project)

    assert variables == {"A": "own", "HOME": "/h", "PYTHONPATH": f"{project}:lib"}
    assert surroundings.search_path(variables, project, project) == (f"{project}/lib",)
    again = surroundings.target_environment(variables, target, project)
    assert again == variables


def test_compiler_caches_win_over_the_users(tmp_path: Path) -> None:
    caches = CompilerCaches(tmp_path)
    found = surroundings.with_caches({"TMPDIR": "/elsewhere", "X": "1"}, caches)
    assert found["TMPDIR"] == str(tmp_path / "tmp")
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    assert found["X"] == "1"


def test_where_modules_are_found_is_no_value_that_a_worker_must_have() -> None:
    env = {"PYTHONPATH": "/srv/shop", "OMP_NUM_THREADS": "4", "APP_MODE": "fast"}
    assert surroundings.counted_variables(env) == ("APP_MODE", "OMP_NUM_THREADS")
