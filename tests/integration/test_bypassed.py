"""Nothing is accepted that torch passed over: each reason leads to a refusal, or to a form of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preheat.store import DiskStore
from support.bypass_reasons import reasons
from support.bypassed import FILES, LATER, PROGRAMS, REFUSED, WAYS
from support.capture import Case, Result, run_cases
from support.project import Project
from support.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The other reasons, and where they are tried or why no program of ours leads to them.
ELSEWHERE = {
    "Cannot cache a graph with freezing enabled": "test_wrapper_steps: the lean form alone",
    "Can't cache HigherOrderOperator": "test_wrapper_steps: a TorchBind object; cond and others are allowed",
    "Can't cache torchbind objects": "torch never finds one here; see artifacts.py",
    "Type {} for object {} cannot be saved": "test_capture_cases: c55, as its guards are ours",
    "{} guard cannot be serialized": "test_capture_cases: such guards are ours, or refused",
    "Guard evaluation failed": "the way 'guards'",
    "Cannot find module for code": "test_capture_cases: c54, functions that exec made",
    "Cannot find source for code entry": "only torch's own loader asks",
    "Cannot resolve a fully qualified name": "test_capture_cases: c06 and c55, functions in functions",
    "Unsupported call_method": "Dynamo calls methods of tensors alone; the way 'AOTAutograd'",
    "Unsupported node op": "Dynamo makes no other nodes; the way 'AOTAutograd'",
    "Won't cache a graph with fakify_first_call": "a setting of torch.export's tracing",
    "AOTAutogradCache requires triton 3.2.0": "torch with an older Triton is not supported",
    "CustomRuntimeEstimator.uuid()": "like a raw callable, which own_estimator has",
    "CustomKnapsackSolver.uuid()": "like a raw callable, which own_estimator has",
    "activation_memory_budget_solver": "like the estimator, which own_estimator has",
    "Unsupported pre grad custom pass": "like a pass after differentiation, which own_pass has",
    "Unsupported joint custom pass": "like a pass after differentiation, which own_pass has",
    "Unsupported _": "passes of torch's own settings; the way 'Inductor'",
    "Skipping graph with frozen constants": "a switch of one company; freezing is refused before it",
    "No shape env": "compiling without Dynamo",
    "Reduce unsupported": "compiled autograd, which is refused as such",
    "mkldnn tensors unpickleable": "freezing makes them, and is refused before",
    "Cannot produce stable cache key": "the way 'Inductor'",
    "Failed to pickle cache key": "the way 'Inductor'",
}


def test_every_reason_of_this_torch_has_its_program_or_says_where_it_is_tried() -> None:
    """A torch with a new reason fails here; the ways in which it can be given are tried below."""
    known = (*(reason for _, reason in PROGRAMS.values()), *ELSEWHERE)
    unknown = {one for one in reasons() if not one.startswith(known)}
    assert unknown == set()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bypassed")


@pytest.fixture(scope="module")
def results(root: Path, caches: Path) -> dict[str, Result]:
    project = Project(root / "project", FILES)
    cases = [Case(name, f"cases.{module}", (name,)) for name, (module, _) in PROGRAMS.items()]
    found = run_cases(cases, caches=caches / "capture", keep=root / "kept", project=project.root)
    return {result.case.name: result for result in found}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - REFUSED))
def test_a_program_that_was_passed_over_has_a_form_of_our_own_that_is_right(
    root: Path, results: dict[str, Result], name: str
) -> None:
    result = results[name]
    assert (result.word, result.form, result.frames_compiled) == ("right", "lean", 0), result.reason
    store = DiskStore(root / "kept" / "store")
    (ref,) = store.refs(name)
    manifest = store.read_manifest(ref.manifest)
    assert [form.kind for form in manifest.forms] == ["lean"]
    assert PROGRAMS[name][1] in manifest.without["dynamo"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_program_without_such_a_form_is_refused_with_the_reason(
    root: Path, results: dict[str, Result], name: str
) -> None:
    assert results[name].word == "refused"
    assert PROGRAMS[name][1] in results[name].reason
    assert list(DiskStore(root / "kept" / "store").refs(name)) == []


@pytest.fixture(scope="module")
def compiler() -> Iterator[Zygote]:
    with Zygote(("support.compiler_libraries",), {}) as zygote:
        yield zygote


@pytest.mark.parametrize("way", WAYS)
def test_whatever_reason_torch_gives_is_the_reason_of_the_refusal(
    compiler: Zygote, tmp_path: Path, way: str
) -> None:
    # What an earlier build of the same graph left in caches would be found there.
    empty = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")}
    dynamo, lean = compiler.call(
        "support.bypassed:given", way, log=tmp_path / "log", seconds=200, environment=empty
    )
    assert LATER in dynamo, (tmp_path / "log").read_text()
    # Of what Dynamo itself passes over, nothing at all is kept.
    assert (lean == []) == (way != "Dynamo"), lean
