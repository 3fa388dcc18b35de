"""The recipes for systemd and for CI: read by the programs that know their form, then run line by line."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_daemon_double as double
from test_systemd_units import analyze, needs_systemd

from preheat.store import DiskStore
from support import container, published
from support.base_image import ENVIRONMENT, asked, base_image
from support.container import ACCOUNTS, IN_FULL, PATH, Container

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
UNIT = RECIPES / "systemd" / "preheat-pull@.service"
needs_container = pytest.mark.skipif(
    bool(container.REASON), reason=f"no container can be made here: {container.REASON}"
)
# What a step of another's action does, and what stands for it here.
ACTIONS = {
    "actions/checkout": "the checkout is there",
    "actions/setup-python": "so is Python",
    "actions/cache": "there is nothing of an earlier run",
    "actions/upload-artifact": "the test looks at the file that it names",
}


@needs_systemd
def test_systemd_reads_the_unit_without_a_complaint(tmp_path: Path) -> None:
    path = tmp_path / "preheat-pull@shop.service"
    # The program need not be installed where this is read.
    path.write_text(UNIT.read_text().replace("/opt/preheat/bin/preheat", "/bin/true"))
    done = analyze("verify", str(path))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    done = analyze("security", "--offline=true", "--no-pager", str(path))
    found = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= 2.0, done.stdout


def run_unit(node: Container, name: str) -> list[tuple[int, str]]:
    """Its lines, as systemd runs them; exit codes that count, and what was said."""
    text = UNIT.read_text().replace("%i", name)
    keys = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
    environment = {"PATH": PATH}
    for key, value in keys:
        if key == "Environment":
            environment.update([value.split("=", 1)])
        elif key == "EnvironmentFile":
            lines = node.at(value).read_text().splitlines()
            environment.update(line.split("=", 1) for line in lines)
    for path in (f"/var/cache/preheat/{name}", f"/var/lib/preheat/{name}"):
        node.at(path).mkdir(parents=True, exist_ok=True)
        node.own(path, "preheat")
    results = []
    for key, value in keys:
        if key.startswith("Exec"):
            line = re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], value)
            words = shlex.split(line.removeprefix("-"))
            done = node.run(*words, env=environment, uid=ACCOUNTS["preheat"])
            code = 0 if line.startswith("-") else done.returncode
            results.append((code, done.stdout + done.stderr))
    return results


@needs_container
def test_the_unit_makes_a_node_warm_and_fails_open(tmp_path: Path) -> None:
    """Without a remote and with a build that fails the node starts; later nothing is built."""
    file = published.project(tmp_path, "classifier")
    project = file.parent
    project.chmod(0o777)  # the double writes a log
    node = Container(tmp_path / "node")
    node.install_preheat("/opt/preheat")
    node.bind(project, str(project), read_only=False)
    node.bind(tmp_path / "store", "/mnt/team/preheat/shop")
    text = file.read_text().replace("./python", f"{project}/python")
    node.write(
        "/etc/preheat/shop.toml",
        text.replace('store = "../store"', f'cwd = "{project}"')
        + f'[env]\nPYTHONPATH = "{project}"\n',
    )  # as docs/service.md has it
    double.write_double(project, build="fail")
    node.write("/etc/preheat/shop.env", "PREHEAT_REMOTE=/mnt/nowhere\n")
    pulled, warmed, hit = run_unit(node, "shop")
    assert [pulled[0], warmed[0], hit[0]] == [0, 0, 0]
    assert "There is no store at" in pulled[1]
    assert "FAILED" in warmed[1]
    assert "miss" in hit[1]
    node.write("/etc/preheat/shop.env", "PREHEAT_REMOTE=/mnt/team/preheat/shop\n")
    pulled, warmed, hit = run_unit(node, "shop")
    assert "imported" in pulled[1]
    assert warmed[0] == 0
    assert "skipped" in warmed[1], warmed  # nothing was left to build
    assert hit[1] == "hit   classifier\n"


def schema_accepts(name: str, file: Path) -> None:
    pytest.importorskip("check_jsonschema")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", name, str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "name"),
    [("github.yml", "vendor.github-workflows"), ("gitlab.yml", "vendor.gitlab-ci")],
)
def test_the_published_schema_accepts_it(file: str, name: str) -> None:
    schema_accepts(name, RECIPES / "ci" / file)


def checkout(place: Path, **control: str) -> tuple[Container, str]:
    """A runner's machine with a checkout whose target is built by a double."""
    file = double.make_project(place / "project", ("classifier",), **control)
    machine = base_image(place / "runner")
    work = "/srv/checkout"
    shutil.copytree(file.parent, machine.at(work), symlinks=True)
    text = file.read_text().replace('store = "../store"', "")
    machine.write(f"{work}/preheat.toml", text)
    machine.write(f"{work}/requirements.txt", "torch\n")
    return machine, work


def yaml_of(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((RECIPES / "ci" / name).read_text())


def github_steps(machine: Container, work: str, known: dict[str, str]) -> list[Any]:
    """Runs the steps of the workflow's job until one fails; those that ran with their results."""

    def meant(value: str) -> str:
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: known[match[1]], value)

    job = yaml_of("github.yml")["jobs"]["packages"]
    ran = []
    for step in job["steps"]:
        if "uses" in step:
            assert step["uses"].partition("@")[0] in ACTIONS
            continue
        variables = {**job["env"], **step.get("env", {})}
        done = machine.run(
            *("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]),
            env={**ENVIRONMENT, **{name: meant(value) for name, value in variables.items()}},
            cwd=work,
        )
        ran.append((step["name"], done))
        if done.returncode:
            break
    return ran


KNOWN = {
    "github.workspace": "/srv/checkout",
    "vars.PREHEAT_REMOTE": "/mnt/team/shop",
    "secrets.AWS_ACCESS_KEY_ID": "",
    "secrets.AWS_SECRET_ACCESS_KEY": "",
}


@needs_container
def test_the_github_workflow_builds_and_pushes(tmp_path: Path) -> None:
    machine, work = checkout(tmp_path)
    ran = github_steps(machine, work, KNOWN)
    assert [(name, done.returncode) for name, done in ran] == [
        (name, 0) for name in ("Install", "Build and prove", "They would load", "Export", "Push")
    ], ran
    assert any("preheat[daemon,fleet]" in line for line in asked(machine))
    uploaded = [step["with"]["path"] for step in yaml_of("github.yml")["jobs"]["packages"]["steps"]
                if step.get("uses", "").startswith("actions/upload-artifact")]  # fmt: skip
    assert uploaded == ["shop.bundle"]
    assert machine.at(f"{work}/shop.bundle").stat().st_size > 0
    assert [ref.target for ref in DiskStore(machine.at("/mnt/team/shop"), trust="off").refs()] == [
        "classifier"
    ]


@needs_container
@IN_FULL
def test_the_github_workflow_ends_where_a_build_fails(tmp_path: Path) -> None:
    machine, work = checkout(tmp_path, build="fail")
    ran = github_steps(machine, work, KNOWN)
    assert [(name, done.returncode) for name, done in ran] == [
        ("Install", 0),
        ("Build and prove", 3),
    ]
    assert not machine.at("/mnt/team/shop").exists()


def test_only_the_main_branch_pushes() -> None:
    """YAML reads the key `on` as true, as GitHub does not."""
    workflow = yaml_of("github.yml")
    push = next(one for one in workflow["jobs"]["packages"]["steps"] if one.get("name") == "Push")
    assert "refs/heads/main" in push["if"]
    assert workflow["permissions"] == {"contents": "read"}
    others = [one for one in workflow["jobs"]["packages"]["steps"] if one.get("name") != "Push"]
    assert "secrets." not in str(others)
    assert yaml_of("gitlab.yml")["push"]["rules"] == [
        {"if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH"}
    ]


@needs_container
@IN_FULL
def test_the_gitlab_pipeline_builds_and_pushes(tmp_path: Path) -> None:
    machine, work = checkout(tmp_path)
    pipeline = yaml_of("gitlab.yml")
    known = {"CI_PROJECT_DIR": work, "PREHEAT_REMOTE": "/mnt/team/shop"}
    for name in ("packages", "push"):
        job = {**pipeline[pipeline[name]["extends"]], **pipeline[name]}
        variables = {**pipeline["variables"], **job.get("variables", {})}
        meant = {key: value.replace("$CI_PROJECT_DIR", work) for key, value in variables.items()}
        script = "\n".join((*job["before_script"], *job["script"]))
        done = machine.run(
            "bash", "-eo", "pipefail", "-c", script, env={**ENVIRONMENT, **known, **meant}, cwd=work
        )
        assert done.returncode == 0, done
        # Each job has a machine of its own: what stays is what it names.
        shutil.rmtree(machine.at(f"{work}/.preheat"))
        machine.at("/image/bin/preheat").unlink()
        if name == "packages":
            assert job["artifacts"]["paths"] == ["shop.bundle"]
    assert [ref.target for ref in DiskStore(machine.at("/mnt/team/shop"), trust="off").refs()] == [
        "classifier"
    ]
