"""Every kind of compiled code, from build to a fresh worker; and what is refused, with its reason."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.store import DiskStore
from preheat.store.transfer import copy_package
from support.capture import Case, Result, run_cases
from support.kinds import FILES, INSTALLED, PROGRAMS, WORKER
from support.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest

TRAINED = ("eager_trained", "aot_eager_trained")


class Kinds:
    """The project, its packages, and what became of each build."""

    def __init__(self, project: Project, results: dict[str, Result]) -> None:
        self.project = project
        self.results = results

    def manifest(self, target: str) -> Manifest:
        return self.project.manifest(target)

    def work(self, names: list[str], env: dict[str, str] | None = None) -> Any:
        programs = {name: PROGRAMS[name] for name in names}
        done = self.project.python(WORKER.format(programs=repr(programs)), env)
        assert done.code == 0, done.err
        return done.json()


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Kinds:
    project = Project(tmp_path_factory.mktemp("kinds") / "project", FILES)
    names = (*PROGRAMS, *TRAINED, "raising")
    cases = [Case(name, "cases.kinds", (name,)) for name in names]
    kept = project.root.parent / "kept"
    installed = str(project.root.parent / "site-packages")
    Project(project.root.parent / "site-packages", INSTALLED)
    project.environment["PYTHONPATH"] += os.pathsep + installed
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", installed)
        found = run_cases(cases, caches=caches / "capture", keep=kept, project=project.root)
    shutil.copytree(kept / "store", project.store_path)
    return Kinds(project, {result.case.name: result for result in found})


@pytest.fixture(scope="module")
def answers(kinds: Kinds) -> dict[str, str]:
    """What one fresh process got from each target, in each form."""
    found: dict[str, str] = kinds.work(list(PROGRAMS))
    return found


@pytest.mark.parametrize("form", ["lean", "dynamo"])
@pytest.mark.parametrize("target", PROGRAMS)
def test_a_kind_is_built_proven_and_agrees_with_eager_in_a_fresh_process(
    kinds: Kinds, answers: dict[str, str], target: str, form: str
) -> None:
    assert kinds.results[target].word == "right", kinds.results[target].reason
    assert answers[f"{target} {form}"] == "right"
    manifest = kinds.manifest(target)
    found = manifest.form(form)
    assert found is not None, manifest.without
    assert found.code == (PROGRAMS[target][2],)


@pytest.mark.parametrize("target", TRAINED)
def test_a_traced_program_is_trained(kinds: Kinds, target: str) -> None:
    assert kinds.results[target].word == "right", kinds.results[target].reason
    assert {form.kind for form in kinds.manifest(target).forms} == {"lean", "dynamo"}


@pytest.mark.parametrize("target", ["eager", "aot_eager", "custom"])
def test_the_lean_form_of_a_traced_program_imports_no_compiler(kinds: Kinds, target: str) -> None:
    proof = kinds.manifest(target).proof
    lean = proof.of("lean") if proof is not None else None
    assert lean is not None and lean.modules == 0


def test_the_distribution_that_brings_a_backend_is_part_of_the_snapshot(kinds: Kinds) -> None:
    libraries = {
        one.distribution: one.version for one in kinds.manifest("custom").sources.libraries
    }
    assert libraries.get("written-out") == "1.0"


def test_a_backend_that_raises_in_serialization_refuses_the_package(kinds: Kinds) -> None:
    result = kinds.results["raising"]
    assert result.word == "refused"
    assert "OSError: the tape is full" in result.reason
    assert list(kinds.project.store().refs("raising")) == []


def other_store(kinds: Kinds, directory: Path, target: str, change: Any) -> dict[str, str]:
    """A copy of the store in which ``change`` was applied to one package."""
    store = DiskStore(directory, create=True)
    manifest = kinds.manifest(target)
    copy_package(kinds.project.store(), store, manifest)
    store.publish(change(manifest, store))
    return {"PREHEAT_STORE": str(directory)}


def test_a_kind_that_this_version_does_not_know_is_refused(kinds: Kinds, tmp_path: Path) -> None:
    def renamed(manifest: Manifest, _: DiskStore) -> Manifest:
        forms = tuple(
            msgspec.structs.replace(form, code=("holographic",)) for form in manifest.forms
        )
        return msgspec.structs.replace(manifest, forms=forms)

    env = other_store(kinds, tmp_path / "store", "eager", renamed)
    for answer in kinds.work(["eager"], env).values():
        assert "unknown kind" in answer and "holographic" in answer
        assert "this version knows inductor, eager, aot_eager" in answer


def test_a_backend_that_no_installed_distribution_brings_is_refused(
    kinds: Kinds, tmp_path: Path
) -> None:
    elsewhere = Project(tmp_path / "elsewhere", FILES)
    script = WORKER.format(programs=repr({"custom": PROGRAMS["custom"]}))
    for answer in (
        elsewhere.python(script, {"PREHEAT_STORE": str(kinds.project.store_path)}).json().values()
    ):
        assert "library changed: written-out" in answer, answer


def test_a_damaged_traced_graph_is_refused(kinds: Kinds, tmp_path: Path) -> None:
    def damaged(manifest: Manifest, store: DiskStore) -> Manifest:
        forms = []
        for form in manifest.forms:
            sha256, size = store.put_object(b"\x93 no graph")
            objects = tuple(
                msgspec.structs.replace(one, sha256=sha256, size=size) for one in form.objects
            )
            forms.append(msgspec.structs.replace(form, objects=objects))
        return msgspec.structs.replace(manifest, forms=tuple(forms))

    env = other_store(kinds, tmp_path / "store", "aot_eager", damaged)
    for answer in kinds.work(["aot_eager"], env).values():
        assert "package corrupted" in answer, answer


def test_a_program_without_a_package_runs_with_its_own_backend(
    kinds: Kinds, tmp_path: Path
) -> None:
    """A miss is compiled as the target says: eager programs stay eager."""
    script = """
        import json, warnings, torch, preheat
        import kinds_model as model

        warnings.simplefilter("ignore", preheat.PreheatWarning)
        program = model.Block()
        loaded = preheat.load("eager", program)
        with torch.no_grad():
            got = loaded(torch.ones(2, 3, 8)[0])
            wrong = loaded(torch.ones(5, 8))
        counters = torch._dynamo.utils.counters
        print(json.dumps([loaded.preheat.misses, counters["inductor"]["fxgraph_cache_miss"]]))
    """
    done = kinds.project.python(textwrap.dedent(script))
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1]) == [2, 0]
