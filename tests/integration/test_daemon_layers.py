"""Commands and daemon where a layer below the store has what the store has not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import environment
from test_daemon_service import edit, serving

from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheatd import cli, events
from support.published import project, publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAYERS = 'layers = ["../gone", "../shared"]\n'
ENVIRONMENT = environment_digest(environment())


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def layered(tmp_path: Path, *names: str) -> Path:
    """A project whose packages are in a layer alone; another layer is not there at all."""
    file = project(tmp_path, *names, extra=LAYERS)
    (tmp_path / "store").rename(tmp_path / "shared")
    return file


def files_of(store: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.lstat() for path in store.rglob("*")}
    return {str(path): (one.st_mtime_ns, one.st_size) for path, one in found.items()}


def asked(capfd: pytest.CaptureFixture[str], file: Path, *words: str) -> dict[str, Any]:
    """What a command answers about each target."""
    code = cli.run([*words, "--json", "--config", str(file)])
    said = capfd.readouterr()
    assert said.err == ""
    found = {one["target"]: one for one in json.loads(said.out)["targets"]}
    assert code == (0 if all(one["verdict"] == "FRESH" for one in found.values()) else 3)
    return found


def kinds(answer: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(one["kind"], one["file"]) for one in answer["reasons"]]


def test_what_a_layer_has_is_not_built(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = layered(tmp_path, "encoder", "decoder")
    before = files_of(tmp_path / "shared")
    for words in (["plan"], ["status"], ["warm", "--once"], ["wait", "--timeout", "0"]):
        for one in asked(capfd, file, *words).values():
            assert (one["verdict"], one["action"]) == ("FRESH", "none")
            assert kinds(one) == [("in_layer", str(tmp_path / "shared"))]
    assert list(DiskStore(tmp_path / "store").object_digests()) == []
    # One of them was edited: it is built, in the store, and the other one is not.
    edit(file, "decoder", 2)
    plan = asked(capfd, file, "plan")
    assert (plan["encoder"]["action"], plan["decoder"]["action"]) == ("none", "build")
    warmed = asked(capfd, file, "warm", "--once")
    assert [one["result"] for one in warmed.values()] == ["skipped", "built"]
    assert [ref.target for ref in DiskStore(tmp_path / "store").refs()] == ["decoder"]
    assert kinds(asked(capfd, file, "status")["decoder"]) == []
    assert files_of(tmp_path / "shared") == before
    assert cli.run(["status", "--config", str(file)]) == 0
    assert f"in layer: {tmp_path / 'shared'}" in "".join(capfd.readouterr().out.split("\n"))


def test_the_own_store_comes_first_and_hides_no_layer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = layered(tmp_path, "encoder")
    own = DiskStore(tmp_path / "store", create=True)
    edit(file, "encoder", 2)
    publish(file, own, "encoder", word="one")
    assert kinds(asked(capfd, file, "plan")["encoder"]) == []
    edit(file, "encoder", 1)  # the own package is stale now
    assert kinds(asked(capfd, file, "plan")["encoder"]) == [("in_layer", str(tmp_path / "shared"))]
    ref = own.layout.ref("encoder", ENVIRONMENT)
    ref.chmod(0o644)
    ref.write_text("{")  # and now damaged, which is said
    plan = asked(capfd, file, "plan")["encoder"]
    assert (plan["verdict"], [kind for kind, _ in kinds(plan)]) == (
        "FRESH",
        ["in_layer", "package_corrupted"],
    )


def _goes_away(shared: Path) -> None:
    shutil.rmtree(shared)


def _belongs_to_everybody(shared: Path) -> None:
    (shared / "v1").chmod(0o777)


def _loses_an_object(shared: Path) -> None:
    store = DiskStore(shared)
    for ref in store.refs():
        for needed in store.read_manifest(ref.manifest).objects():
            store.layout.object(needed.sha256).unlink()


def _is_another_format(shared: Path) -> None:
    (shared / "FORMAT").chmod(0o644)
    (shared / "FORMAT").write_text("preheat store 9\n")


def _is_a_file(shared: Path) -> None:
    shutil.rmtree(shared)
    shared.write_text("")


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (_goes_away, "layer_missing"),
        (_belongs_to_everybody, "layer_not_usable"),
        (_loses_an_object, "layer_not_usable"),
        (_is_another_format, "layer_not_usable"),
        (_is_a_file, "layer_missing"),
    ],
)
def test_a_layer_in_trouble_is_named_and_does_not_count(
    trouble: Callable[[Path], None],
    kind: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = layered(tmp_path, "encoder")
    assert asked(capfd, file, "plan")["encoder"]["verdict"] == "FRESH"
    trouble(tmp_path / "shared")
    plan = asked(capfd, file, "plan")["encoder"]
    assert (plan["verdict"], plan["action"]) == ("MISSING", "build")
    assert kinds(plan)[1:] == [
        ("layer_missing", str(tmp_path / "gone")),
        (kind, str(tmp_path / "shared")),
    ]
    assert cli.run(["would-hit", "--json", "--config", str(file)]) == 3
    (hit,) = json.loads(capfd.readouterr().out)["targets"]
    assert ("layer_missing", str(tmp_path / "gone")) in kinds(hit)
    assert asked(capfd, file, "warm", "--once")["encoder"]["result"] == "built"
    assert kinds(asked(capfd, file, "plan")["encoder"]) == []


def test_what_is_not_to_be_trusted_stays_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A layer stands in for what is old or missing, and hides nothing."""
    file = layered(tmp_path, "encoder")
    DiskStore(tmp_path / "store", create=True)
    (tmp_path / "store" / "v1").chmod(0o777)
    assert cli.run(["plan", "--json", "--config", str(file)]) == 5
    (decision,) = json.loads(capfd.readouterr().out)["targets"]
    assert (decision["verdict"], decision["action"]) == ("UNTRUSTED", "none")


async def test_a_daemon_builds_when_a_layer_goes_away(tmp_path: Path) -> None:
    """Nothing tells of it, as layers are not watched: the next look does."""
    file = layered(tmp_path, "encoder")
    async with serving(file, rescan_seconds=0.1) as heard:
        planned = await heard.next(events.PLANNED)
        assert "1 fresh" in (planned.detail or "")
        assert heard.count(events.BUILD_STARTED) == 0
        shutil.rmtree(tmp_path / "shared")
        await heard.next(events.BUILD_PUBLISHED)
    assert [ref.target for ref in DiskStore(tmp_path / "store").refs()] == ["encoder"]
