"""Every kind of compiled code, from build to a fresh worker; and what is refused, with its reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.store import DiskStore
from preheat.store.transfer import copy_package
from support.capture import Case, Result, run_cases
from support.kinds import FILES, INSTALLED, ONE_FORM, PROGRAMS, WORKER
from support.project import Project

if TYPE_CHECKING:
    from preheat.manifest import Manifest

FORMS = [(target, form) for target in PROGRAMS for form in ONE_FORM.get(target, ("lean", "dynamo"))]
NO_LIBRARY = {
    "aoti_frozen": "freezing puts parameters into the library",
    "aoti_function": "output='aoti' is for modules",
    "aoti_outside": "the values of G['OUTSIDE'] would be part of the library",
    "aoti_changing": "The program changes calls in place",
    "aoti_viewing": "a result is a view of an argument or parameter",
}
TRAINED = {
    "eager_trained": {"lean", "dynamo"},
    "aot_eager_trained": {"lean", "dynamo"},
    "regional_trained": {"dynamo"},
    "nested_trained": {"lean", "dynamo"},
}


class Kinds:
    """The project, its packages, and what became of each build."""

    def __init__(self, project: Project, results: dict[str, Result]) -> None:
        self.project = project
        self.results = results

    def manifest(self, target: str) -> Manifest:
        return self.project.manifest(target)

    def work(self, names: list[str], env: dict[str, str] | None = None) -> Any:
        programs = {name: PROGRAMS[name] for name in names}
        done = self.project.python(WORKER.format(programs=repr(programs), forms=ONE_FORM), env)
        assert done.code == 0, done.err
        return done.json()


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Kinds:
    project = Project(tmp_path_factory.mktemp("kinds") / "project", FILES)
    names = (*PROGRAMS, *TRAINED, *NO_LIBRARY, "raising", "unmarked")
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


@pytest.mark.parametrize(("target", "form"), FORMS)
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
def test_a_program_of_another_kind_is_trained(kinds: Kinds, target: str) -> None:
    assert kinds.results[target].word == "right", kinds.results[target].reason
    assert {form.kind for form in kinds.manifest(target).forms} == TRAINED[target]


@pytest.mark.parametrize("target", ["eager", "aot_eager", "aoti", "custom"])
def test_the_lean_form_of_a_program_imports_no_compiler(kinds: Kinds, target: str) -> None:
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
        assert "this version knows inductor, eager, aot_eager, regional, aoti" in answer


def test_a_backend_that_no_installed_distribution_brings_is_refused(
    kinds: Kinds, tmp_path: Path
) -> None:
    elsewhere = Project(tmp_path / "elsewhere", FILES)
    script = WORKER.format(programs=repr({"custom": PROGRAMS["custom"]}), forms=ONE_FORM)
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


@pytest.mark.parametrize("target", NO_LIBRARY)
def test_a_program_that_a_library_cannot_stand_for_is_refused(kinds: Kinds, target: str) -> None:
    assert kinds.results[target].word == "refused"
    assert kinds.results[target].reason.startswith("refused: ")
    assert NO_LIBRARY[target] in kinds.results[target].reason


LIBRARY = """
    import copy, json, warnings
    import torch
    import preheat
    import kinds_model as model
    from torch import nn

    warnings.simplefilter("ignore", preheat.PreheatWarning)
    torch.manual_seed(2)


    def extra():
        return {"more": torch.randn(8)}


    def whole():
        return model.Whole().eval()


    def call(program, x, **more):
        return program(x, **{"scale": 3.0, "extra": extra(), **more})


    def covered(loaded):
        return loaded.preheat.misses == 0 and loaded.preheat.form == "lean"


    def assigned(program):
        program.linear.weight = nn.Parameter(torch.randn(8, 8))


    def by_data(program):
        program.linear.bias.data = torch.randn(8)


    def in_place(program):
        with torch.no_grad():
            program.shift.add_(5)
            program.linear.weight.mul_(2)


    def table(program):
        program.table[0] = 99


    def other_table(program):
        program.table = torch.ones(8)


    def factor(program):
        program.factor = 4.0


    def doubled(program):
        program.shift = program.shift.double()


    def transposed(program):
        program.linear.weight.data = torch.randn(8, 8).t()


    def constant(program):
        model.SCALE = 7.0


    X = torch.randn(5, 8)
    CHANGES = [
        # what is changed after loading, the call, whether the library still answers
        ("nothing", None, (X, {}), True),
        ("more rows", None, (torch.randn(64, 8), {}), True),
        ("assigned parameter", assigned, (X, {}), True),
        ("parameter's data", by_data, (X, {}), True),
        ("changed in place", in_place, (X, {}), True),
        ("too many rows", None, (torch.randn(65, 8), {}), False),
        ("too few rows", None, (torch.randn(1, 8), {}), False),
        ("another dtype", None, (X.double(), {}), False),
        ("strides", None, (torch.randn(8, 5).t(), {}), False),
        ("a literal", None, (X, {"scale": 2.0}), False),
        ("a literal's type", None, (X, {"scale": 3}), False),
        ("a default", None, (X, {"extra": None}), False),
        ("a key more", None, (X, {"extra": {**extra(), "rest": X}}), True),
        ("values of a tensor", table, (X, {}), False),
        ("a tensor", other_table, (X, {}), False),
        ("an attribute", factor, (X, {}), False),
        ("a buffer's dtype", doubled, (X, {}), False),
        ("a parameter's strides", transposed, (X, {}), False),
        ("a global", constant, (X, {}), False),
    ]
    answers = {}
    for name, change, (x, more), _ in CHANGES:
        program = whole()
        loaded = preheat.load("aoti", program, on_miss="eager", form="lean")
        assert loaded.preheat.form == "lean", loaded.preheat
        if change is not None:
            change(program)
        with torch.no_grad():
            try:
                state = torch.get_rng_state()
                got = call(loaded, x, **more)
                torch.set_rng_state(state)
                wanted = call(program, x, **more)
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
                answers[name] = [covered(loaded), "right"]
            except RuntimeError as error:
                answers[name] = [covered(loaded), type(error).__name__]
    expected = {name: covered for name, _, _, covered in CHANGES}
    model.SCALE = 2.0

    refused = {}
    lacking = whole()
    del lacking.shift
    lacking.register_buffer("shift", None)
    for name, program in {"lacking": lacking, "double": whole().double()}.items():
        loaded = preheat.load("aoti", program, on_miss="eager", form="lean")
        refused[name] = [str(reason) for reason in loaded.preheat.reasons]
    lacking = whole()
    lacking.table = torch.zeros(8)
    loaded = preheat.load("aoti", lacking, on_miss="eager", form="lean")
    refused["table"] = [str(reason) for reason in loaded.preheat.reasons]
    print(json.dumps([expected, answers, refused]))
"""


def test_a_library_answers_what_it_was_built_for_and_nothing_else(kinds: Kinds) -> None:
    """Whatever is changed after loading: the numbers are eager's."""
    done = kinds.project.python(LIBRARY)
    assert done.code == 0, done.err
    expected, answers, refused = done.json()
    covered = {name: answer[0] for name, answer in answers.items()}
    assert covered == expected
    wrong = {name: answer for name, answer in answers.items() if answer[1] != "right"}
    # Eager itself refuses to multiply matrices of two dtypes.
    assert wrong == {"another dtype": [False, "RuntimeError"]}
    assert any("constant differs" in one and "float64" in one for one in refused["double"]), refused
    assert any("constant missing: shift" in one for one in refused["lacking"]), refused
    assert any("weights differ" in one and "table" in one for one in refused["table"]), refused


CPP = Path(__file__).parents[2] / "docs" / "library.cpp"


def test_a_library_runs_in_a_program_without_python(kinds: Kinds, tmp_path: Path) -> None:
    """``docs/library.cpp``, compiled and run."""
    script = f"""
        import json, torch, preheat
        import kinds_model as model

        program = model.Whole().eval()
        paths = preheat.export_library("aoti", program, {str(tmp_path)!r})
        with torch.no_grad():
            output = program(torch.ones(5, 8), scale=3.0, extra={{"more": torch.ones(8)}})
        print(json.dumps([*map(str, paths), float(output["y"].sum()), torch.__file__]))
    """
    library, constants, wanted, where = kinds.project.python(script).json()
    torch_directory = Path(where).parent
    program = tmp_path / "program"
    includes = [torch_directory / "include", torch_directory / "include/torch/csrc/api/include"]
    compiled = subprocess.run(
        [
            *("c++", "-std=c++20", "-O0", str(CPP), "-o", str(program)),
            *(f"-I{one}" for one in includes),
            *(f"-L{torch_directory / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"),
            f"-Wl,-rpath,{torch_directory / 'lib'}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run(
        [str(program), library, constants], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) == pytest.approx(wanted, rel=1e-4)


def test_a_program_without_a_marked_region_is_no_regional_one(kinds: Kinds) -> None:
    assert kinds.results["unmarked"].word == "refused"
    assert "no region of a graph is marked" in kinds.results["unmarked"].reason


def test_a_region_whose_kernel_is_missing_is_refused(kinds: Kinds, tmp_path: Path) -> None:
    def without_kernels(manifest: Manifest, _: DiskStore) -> Manifest:
        forms = tuple(
            msgspec.structs.replace(form, objects=form.objects[:1]) for form in manifest.forms
        )
        return msgspec.structs.replace(manifest, forms=forms)

    env = other_store(kinds, tmp_path / "store", "regional", without_kernels)
    (answer,) = kinds.work(["regional"], env).values()
    assert "package corrupted" in answer or "load failed" in answer, answer
    assert "kernel" in answer.lower() or "region" in answer, answer


def test_kinds_are_loaded_from_a_store_in_memory(kinds: Kinds) -> None:
    script = """
        import json, torch, preheat
        import kinds_model as model
        from preheat.store import MemoryStore, find_store
        from preheat.store.transfer import copy_package

        disk, memory = preheat.DiskStore(find_store(None)), MemoryStore()
        answers = {}
        for name in ("eager", "aot_eager", "aoti", "custom"):
            (ref,) = disk.refs(name)
            manifest = disk.read_manifest(ref.manifest)
            copy_package(disk, memory, manifest)
            memory.publish(manifest)
            fn = {"aoti": model.Whole().eval(), "custom": model.waves}.get(name) or model.Block()
            loaded = preheat.load(name, fn, store=memory, on_miss="error")
            answers[name] = loaded.preheat.form
        print(json.dumps(answers))
    """
    done = kinds.project.python(script)
    assert done.code == 0, done.err
    assert set(done.json().values()) == {"lean"}
