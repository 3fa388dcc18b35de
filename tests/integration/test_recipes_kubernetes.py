"""The Kubernetes manifests: against the published schemas, then run as a kubelet would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import container, published
from support.container import IN_FULL, IS_ROOT, PATH
from support.pods import Pod
from support.project import until

if TYPE_CHECKING:
    from support.walkthrough import Walkthrough

RECIPES = Path(__file__).parents[2] / "docs" / "recipes" / "kubernetes"
FILES = ("job.yaml", "daemonset.yaml")
# The newest version that the validator knows, and one that clusters have had for years.
VERSIONS = ("1.37", "1.29")
needs_root = pytest.mark.skipif(
    bool(container.REASON) or not IS_ROOT,
    reason=f"containers of several accounts need root: {container.REASON or 'this is none'}",
)


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((RECIPES / name).read_text()))


def containers(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container with its pod's specification."""
    found = []
    for document in documents(name):
        spec = document["spec"]["template"]["spec"]
        found += [(spec, one) for one in (*spec.get("initContainers", ()), *spec["containers"])]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_the_schemas_of_kubernetes_accept_it(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_would_refuse_a_mistake() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    document = documents("job.yaml")[0]
    document["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("name", FILES)
def test_every_container_is_closed(name: str) -> None:
    """As the profile `restricted` asks, but for the one that gives a directory of the node to its account."""
    seen = set()
    for spec, one in containers(name):
        seen.add(one["name"])
        security = {**spec["securityContext"], **one["securityContext"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        if security["runAsUser"] == 0:
            assert (name, one["name"]) == ("daemonset.yaml", "preheat-directory")
            assert security["capabilities"]["add"] == ["CHOWN"]
        else:
            assert security["runAsNonRoot"] is True
            assert "add" not in security["capabilities"]
        assert one["resources"]["limits"]["memory"]
        assert spec["automountServiceAccountToken"] is False
    assert len(seen) >= 3


@pytest.mark.parametrize("name", FILES)
def test_workers_cannot_write_packages(name: str) -> None:
    workers = [one for _, one in containers(name) if one["name"] in ("worker", "preheat-wait")]
    assert workers
    for one in workers:
        (mount,) = [mount for mount in one["volumeMounts"] if mount["name"] == "preheat"]
        assert mount["readOnly"] is True


def pod(document: dict[str, Any], place: Path, image: dict[str, Path], remote: Path) -> Pod:
    """One pod of it. ``image``: what a container of it has besides preheat."""
    (place / "node").mkdir(exist_ok=True)
    made = place / document["metadata"]["name"]
    pod = Pod(
        document["spec"]["template"],
        made,
        node=place / "node",
        claims={"preheat-packages": remote},
        image={**image, "/venv": Path(sys.prefix)},
        path=f"/venv/bin:{PATH}",
    )
    (made / "tmp" / "double.json").write_text("{}")  # what a double does: nothing special
    return pod


@pytest.fixture
def doubled(tmp_path: Path) -> tuple[dict[str, Path], Path]:
    """An image whose interpreter is a double, which answers in no time, and a remote with its package."""
    file = published.project(tmp_path / "double", "classifier")
    remote = tmp_path / "remote"
    remote.mkdir()
    (tmp_path / "double" / "store").rename(remote / "shop")
    python = "/srv/python"  # not below /tmp, where a pod has a volume of its own
    toml = tmp_path / "preheat.toml"
    toml.write_text(f'targets = ["app.classifier:classifier"]\npython = "{python}"\ncwd = "/tmp"\n')
    image = {"/srv/shop/app": file.parent / "app", "/srv/shop/preheat.toml": toml}
    return {**image, python: file.parent / "python"}, remote


@needs_root
def test_a_job_pulls_and_starts_warm(walkthrough: Walkthrough, tmp_path: Path) -> None:
    (document,) = documents("job.yaml")
    project = walkthrough.project
    image = {f"/srv/shop/{name}": project / name for name in ("app", "work.py", "preheat.toml")}
    job = pod(document, tmp_path, image, walkthrough.remote)
    assert job.run("preheat-directory").returncode == 0
    pulled = job.run("preheat-pull")
    assert pulled.returncode == 0
    assert "imported" in pulled.stdout, pulled
    assert "hit   classifier" in pulled.stdout, pulled
    worker = job.run("worker")
    assert worker.returncode == 0, worker
    assert "from the form lean" in worker.stdout, worker
    assert "0 frames compiled; compiler imported: False" in worker.stdout


@needs_root
@IN_FULL
def test_a_job_without_a_remote_begins_all_the_same(
    doubled: tuple[dict[str, Path], Path], tmp_path: Path
) -> None:
    (document,) = documents("job.yaml")
    (tmp_path / "empty").mkdir()
    job = pod(document, tmp_path, doubled[0], tmp_path / "empty")
    assert job.run("preheat-directory").returncode == 0
    pulled = job.run("preheat-pull")
    assert pulled.returncode == 0
    assert "the pull ended with code 7; the job begins all the same" in pulled.stderr, pulled
    assert "not everything is warm" in pulled.stderr


@needs_root
def test_a_node_is_kept_warm(doubled: tuple[dict[str, Path], Path], tmp_path: Path) -> None:
    """The DaemonSet fills the node's directory and says when it is ready; a job may then read it."""
    daemon_set, job_document = documents("daemonset.yaml")
    daemon = pod(daemon_set, tmp_path, *doubled)
    described = daemon.container("preheat")
    ready = described["readinessProbe"]["exec"]["command"]
    alive = described["livenessProbe"]["exec"]["command"]
    assert daemon.run("preheat-directory").returncode == 0
    assert daemon.run("preheat", ready).returncode == 3
    assert daemon.run("preheat", alive).returncode == 1
    with daemon.running("preheat") as running:
        until(lambda: daemon.run("preheat", alive).returncode == 0, "alive", 60)
        assert daemon.run("preheat", ready).returncode == 0
        assert running.terminate() == 0
    job = pod(job_document, tmp_path, *doubled)
    waited = job.run("preheat-wait")
    assert waited.returncode == 0
    assert "FRESH" in waited.stdout, waited
    assert "not everything" not in waited.stderr
    assert job.run("worker", ["preheat", "would-hit"]).returncode == 0
