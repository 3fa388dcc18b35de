"""Each step of loading Inductor's wrapper: it is right, and without the step its check fails.

What needs a GPU is in ``tests/gpu/test_gpu_wrapper_steps.py`` and ``tests/unit/test_cuda_graph_checks.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preheat.store import DiskStore
from support.capture import Case, Result, run_cases
from support.project import Project
from support.steps import BOTH, CHECKS, FILES, LEFT_OUT
from support.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheat.manifest import Manifest

FREEZING = ("frozen", "packed")
# Frozen parameters have no dynamo form.
FORMS = [(step, form) for step in CHECKS for form in BOTH if (step, form) != ("frozen", "dynamo")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> tuple[Path, dict[str, Result]]:
    root = tmp_path_factory.mktemp("steps")
    project = Project(root / "project", FILES)
    cases = [
        Case(name, "cases.frozen" if name in FREEZING else "cases.steps", (name,))
        for name in (*CHECKS, "packed", "torchbind")
    ]
    found = run_cases(cases, caches=caches / "capture", keep=root / "kept", project=project.root)
    return root, {result.case.name: result for result in found}


@pytest.fixture(scope="module")
def checked(built: tuple[Path, dict[str, Result]]) -> Iterator[Callable[[str, str, bool], str]]:
    """What is wrong with a step in a form, in a process of its own."""
    root, _ = built
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(root / "no-cache")}
    with Zygote(("support.compiler_libraries", "preheat.worker"), environment) as zygote:

        def check(step: str, form: str, without: bool) -> str:
            request = {
                "project": str(root / "project"),
                "store": str(root / "kept" / "store"),
                "step": step,
                "form": form,
                "without": "yes" if without else "",
            }
            log = root / f"{step}-{form}.log"
            answer: str = zygote.call("support.steps:checked", request, log=log, seconds=120)
            return answer

        yield check


def manifest(root: Path, target: str) -> Manifest:
    store = DiskStore(root / "kept" / "store")
    (ref,) = store.refs(target)
    return store.read_manifest(ref.manifest)


@pytest.mark.parametrize(("step", "form"), FORMS)
def test_a_program_that_needs_the_step_is_right(
    checked: Callable[[str, str, bool], str], step: str, form: str
) -> None:
    assert checked(step, form, False) == ""


@pytest.mark.parametrize(("step", "form"), LEFT_OUT)
def test_without_the_step_its_check_fails(
    checked: Callable[[str, str, bool], str], step: str, form: str
) -> None:
    wrong = checked(step, form, True)
    assert wrong != ""
    assert "(STALE)" not in wrong or "load failed" in wrong, f"it was not even tried: {wrong}"


def test_frozen_parameters_have_the_lean_form_alone(built: tuple[Path, dict[str, Result]]) -> None:
    root, _ = built
    assert [form.kind for form in manifest(root, "frozen").forms] == ["lean"]
    assert "freezing" in manifest(root, "frozen").without["dynamo"]


def test_a_frozen_parameter_in_a_layout_of_its_own_is_refused(
    built: tuple[Path, dict[str, Result]],
) -> None:
    result = built[1]["packed"]
    assert result.word == "refused", result
    assert "a tensor that is stored as _mkldnn" in result.reason, result.reason


def test_a_graph_with_a_torchbind_object_is_refused(
    built: tuple[Path, dict[str, Result]],
) -> None:
    result = built[1]["torchbind"]
    assert result.word == "refused", result
    assert "call_torchbind" in result.reason, result.reason
