"""The Dockerfile that bakes a store: linted, then built stage by stage, then run as its user, read-only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import test_daemon_double as double

from support import container
from support.base_image import asked
from support.container import IN_FULL
from support.dockerfile import Builder, BuildError

if TYPE_CHECKING:
    from support.walkthrough import Walkthrough

DOCKERFILE = Path(__file__).parents[2] / "docs" / "recipes" / "container" / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
    "hadolint"
)
needs_container = pytest.mark.skipif(
    bool(container.REASON), reason=f"no container can be made here: {container.REASON}"
)


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([str(HADOLINT), DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def context_of_the_double(place: Path, **control: str) -> Path:
    """A build's context whose target is built by a double, in no time."""
    file = double.make_project(place / "project", ("classifier",), **control)
    context = place / "context"
    shutil.copytree(file.parent / "app", context / "app")
    (context / "requirements.txt").write_text("torch\npreheat\n")
    (context / "work.py").write_text("")
    (context / "preheat.toml").write_text(
        f'targets = ["app.classifier:classifier"]\npython = "{file.parent}/python"\n'
        f'cwd = "{file.parent}"\n'
    )
    return context


def build(place: Path, context: Path, **arguments: str) -> Builder:
    (place / "stages").mkdir()
    return Builder(place / "stages", context, arguments)


class WithDouble(Builder):
    """The double lies beside the context; every stage sees it."""

    def _from(self, rest: str):  # type: ignore[no-untyped-def]
        stage = super()._from(rest)
        project = self._context.parent / "project"
        stage.root.bind(project, str(project), read_only=False)
        return stage


def built(tmp_path: Path, **control: str):  # type: ignore[no-untyped-def]
    context = context_of_the_double(tmp_path, **control)
    (tmp_path / "stages").mkdir()
    return context, WithDouble(tmp_path / "stages", context, {})


@needs_container
def test_the_store_is_in_the_image_and_nothing_else_of_the_build(tmp_path: Path) -> None:
    _, builder = built(tmp_path)
    image = builder.build(DOCKERFILE.read_text())
    store = image.root.at("/opt/preheat/store")
    assert [path.name for path in (store / "v1" / "refs").iterdir()] == ["classifier"]
    assert [path for path in store.rglob("*") if path.stat().st_mode & 0o022] == []
    assert list(image.root.at("/var").rglob("preheat")) == []
    assert not image.root.at("/image/bin/preheat").exists()
    assert asked(image.root) == ["pip install --no-cache-dir -r requirements.txt"]
    assert image.uid == 10001


@needs_container
def test_a_target_that_fails_fails_the_build(tmp_path: Path) -> None:
    _, builder = built(tmp_path, build="fail")
    with pytest.raises(BuildError, match=r"preheat warm.*: 3\n"):
        builder.build(DOCKERFILE.read_text())


@needs_container
@IN_FULL
def test_a_node_that_is_another_one_fails_the_build(tmp_path: Path) -> None:
    context, builder = built(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "preheatd", "environment", "--json"],
        cwd=context,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "PREHEAT_STORE": str(tmp_path / "store")},
    )
    node = json.loads(done.stdout)
    assert '"torch":"one"' in done.stdout.replace(" ", "")
    (context / "node.json").write_text(json.dumps(node).replace('"one"', '"two"'))
    with pytest.raises(BuildError, match="torch"):
        builder.build(DOCKERFILE.read_text())


@needs_container
def test_a_container_of_it_starts_warm(walkthrough: Walkthrough, tmp_path: Path) -> None:
    """From a bundle that was made elsewhere, with a real program."""
    context = tmp_path / "context"
    shutil.copytree(walkthrough.project, context)
    shutil.copy(walkthrough.team / "shop.bundle", context)
    (context / "requirements.txt").write_text("torch\npreheat\n")
    image = build(tmp_path, context, FROM_BUNDLE="1").build(DOCKERFILE.read_text())
    done = image.root.run(
        *image.command,
        env=image.environment,
        uid=image.uid,
        cwd=image.directory,
        read_only=True,
    )
    assert done.returncode == 0, done
    assert "from the form lean" in done.stdout, done
    assert "0 frames compiled; compiler imported: False" in done.stdout
