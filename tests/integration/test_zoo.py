"""Packages of many kinds of programs, loaded by workers in fresh processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.project import Project

TARGETS = [
    "encoder",
    "wide_gelu",
    "modes",
    "broken",
    "training",
    "counter",
    "random",
    "autocast",
    "left_program",
    "right_program",
    "mainly",
]
FORMS = [(target, form) for target in TARGETS for form in ("lean", "dynamo")]

LOAD_ALL = """
    import json, sys, warnings
    import torch
    import preheat
    import zoo.warm
    from preheat.exercise import TOLERANCE, compare, exercise, make_spec

    warnings.simplefilter("error")
    answers = {}
    # The dynamo form imports the compiler, so it comes last.
    for name, form in sorted(%(forms)r, key=lambda one: one[1] == "dynamo"):
        factory = getattr(zoo.warm, {"mainly": "mainly_target"}.get(name, name))
        wanted, loaded = make_spec(factory, name), make_spec(factory, name)
        model = preheat.load(name, loaded.fn, on_miss="error", form=form)
        errors = []
        for a, b in zip(wanted.calls(), loaded.calls()):
            eager, actual = exercise(wanted, wanted.fn, a), exercise(loaded, model, b)
            errors.append(None if eager.random else compare(eager, actual, TOLERANCE, name))
        report = model.preheat
        answers[f"{name} {form}"] = {
            "form": report.form,
            "verdict": report.verdict,
            "misses": report.misses,
            "compiled": report.frames_compiled,
            "errors": errors,
        }
    from torch._dynamo.utils import counters
    answers["graphs"] = counters["stats"]["unique_graphs"]
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def loaded(zoo: Project, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One worker that loads every target in every form, with empty compiler caches."""
    nowhere = tmp_path_factory.mktemp("no-caches")
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(nowhere / "inductor"),
        "TMPDIR": str(nowhere),
    }
    done = zoo.python(LOAD_ALL % {"forms": FORMS}, env=environment)
    assert done.code == 0, done.err
    answer = done.json()
    answer["left behind"] = sorted(p.name for p in nowhere.rglob("*.so"))
    return answer


@pytest.mark.parametrize(("target", "form"), FORMS)
def test_a_target_loads_and_agrees_with_eager(loaded: Any, target: str, form: str) -> None:
    answer = loaded[f"{target} {form}"]
    assert answer["form"] == form
    assert answer["verdict"] == "FRESH"
    assert answer["misses"] == answer["compiled"] == 0
    assert len(answer["errors"]) >= 1


def test_nothing_was_compiled_in_the_worker(loaded: Any) -> None:
    assert loaded["graphs"] == 0


def test_kernels_come_from_the_package_and_not_from_a_compiler_cache(loaded: Any) -> None:
    assert loaded["left behind"] == []


def test_random_numbers_are_those_of_the_compiled_program(zoo: Project) -> None:
    assert zoo.manifest("random").proof is not None
    assert zoo.manifest("random").proof.against == "compiled"  # type: ignore[union-attr]


def test_every_form_has_a_proof(zoo: Project) -> None:
    for target in TARGETS:
        proof = zoo.manifest(target).proof
        assert proof is not None
        assert {(target, one.form) for one in proof.forms} == {
            one for one in FORMS if one[0] == target
        }
        assert all(one.frames_compiled == 0 for one in proof.forms)
        # The program with breaks asks for the compiler itself: it says where to break.
        assert all(
            one.modules == 0 or target == "broken" for one in proof.forms if one.form == "lean"
        )
        assert proof.examples >= 1


def test_no_form_is_missing(zoo: Project) -> None:
    assert {target: zoo.manifest(target).without for target in TARGETS} == {
        target: {} for target in TARGETS
    }


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_a_covered_call_hits_and_an_uncovered_one_follows_the_policy(
    zoo: Project, form: str
) -> None:
    script = """
        import json, warnings, torch, preheat
        from zoo.model import Encoder

        torch.manual_seed(1)
        model = Encoder().eval()
        answer = {}
        covered, uncovered = torch.randn(8, 16), torch.randn(2, 3, 16)
        for policy in ("error", "eager", "compile"):
            loaded = preheat.load("encoder", model, on_miss=policy, form=FORM)
            with torch.no_grad():
                hit = torch.allclose(loaded(covered), model(covered), atol=1e-6)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    output = loaded(uncovered)
                    with torch.no_grad():
                        right = torch.allclose(output, model(uncovered), atol=1e-5)
                except preheat.PreheatError as error:
                    right = [reason.kind for reason in error.reasons], str(error)
            report = loaded.preheat
            answer[policy] = [hit, right, report.misses, report.frames_compiled,
                              [str(w.message) for w in caught if w.category is preheat.PreheatWarning]]
            with torch.no_grad():
                hit_again = torch.allclose(loaded(covered), model(covered), atol=1e-6)
            answer[policy].append(hit_again)
        print(json.dumps(answer))
    """
    done = zoo.python(script.replace("FORM", repr(form)))
    assert done.code == 0, done.err
    answer = done.json()
    hit, (kinds, text), misses, compiled, _, again = answer["error"]
    assert (hit, kinds, misses, compiled, again) == (True, ["call_not_covered"], 1, 0, True)
    assert "Encoder.forward" in text
    hit, right, misses, compiled, said, again = answer["eager"]
    assert (hit, right, misses, compiled, again) == (True, True, 1, 0, True)
    assert len(said) == 1
    hit, right, misses, compiled, said, again = answer["compile"]
    assert (hit, right, again) == (True, True, True)
    assert misses == compiled == 1
    assert "compiles this call" in said[0]


def test_the_loaded_module_is_the_original_in_all_other_respects(zoo: Project) -> None:
    script = """
        import copy, io, json, pickle, torch, preheat
        from zoo.model import Encoder

        model = Encoder().eval()
        loaded = preheat.load("encoder", model, on_miss="error")
        x = torch.randn(8, 16)
        before = loaded(x)
        checks = {
            "is a module": isinstance(loaded, torch.nn.Module),
            "keys": list(loaded.state_dict()) == list(model.state_dict()),
            "parameters": [id(p) for p in loaded.parameters()] == [id(p) for p in model.parameters()],
            "attribute": loaded.linear is model.linear,
            "no gradient": before.requires_grad is False,
            "training flag": (loaded.train().training, model.training) == (True, True),
            "eval flag": (loaded.eval().training, model.training) == (False, False),
        }
        # New weights count at once: they are never part of a package.
        loaded.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
        checks["weights"] = bool((loaded(x) == 0).all())
        loaded.note = 7
        checks["assignment"] = model.note == 7
        checks["copy"] = type(copy.deepcopy(loaded)) is Encoder
        checks["pickle"] = type(pickle.loads(pickle.dumps(loaded))) is Encoder
        checks["repr"] = "preheat encoder" in repr(loaded)
        print(json.dumps(checks))
    """
    done = zoo.python(script)
    assert done.code == 0, done.err
    failed = [name for name, held in done.json().items() if not held]
    assert failed == []


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_another_activation_or_size_is_a_miss_and_never_a_wrong_answer(
    zoo: Project, form: str
) -> None:
    script = """
        import json, torch, torch.nn.functional as F, preheat
        from zoo import model

        answer = {}
        def attempt(name, target, module, *args):
            loaded = preheat.load(target, module, on_miss="error", form=FORM)
            try:
                loaded(*args)
                answer[name] = "hit"
            except preheat.PreheatError as error:
                answer[name] = str(error)

        x = torch.randn(8, 16)
        attempt("same", "encoder", model.Encoder().eval(), x)
        attempt("other activation", "encoder", model.Encoder(act=F.gelu).eval(), x)
        attempt("own activation", "encoder", model.Encoder(act=lambda t: t * 2).eval(), x)
        attempt("other size", "encoder", model.Encoder(24).eval(), torch.randn(8, 24))
        attempt("other dtype", "encoder", model.Encoder().eval().double(), x.double())
        changed = model.Encoder().eval()
        loaded = preheat.load("encoder", changed, on_miss="error", form=FORM)
        loaded(x)
        changed.act = torch.tanh
        try:
            loaded(x)
            answer["changed after load"] = "hit"
        except preheat.PreheatError as error:
            answer["changed after load"] = str(error)
        y = torch.randn(6)
        modes = preheat.load("modes", model.by_mode, on_miss="error", form=FORM)
        same = torch.allclose(modes(y, model.Mode.TWICE), model.by_mode(y, model.Mode.TWICE))
        same &= torch.allclose(modes(y, model.Mode.ONCE), model.by_mode(y, model.Mode.ONCE))
        answer["enumeration"] = "hit" if same else "wrong"
        print(json.dumps(answer))
    """
    done = zoo.python(script.replace("FORM", repr(form)))
    assert done.code == 0, done.err
    answer = done.json()
    assert answer.pop("same") == "hit"
    assert answer.pop("enumeration") == "hit"
    assert "hit" not in answer.values(), answer
    assert "act" in answer["other activation"]


def test_a_value_that_changed_in_this_process_refuses_the_package(zoo: Project) -> None:
    script = """
        import json, torch, preheat
        from zoo import model

        model.SCALE = 3.0
        module, x = model.Encoder().eval(), torch.randn(8, 16)
        loaded = preheat.load("encoder", module, on_miss="eager")
        with torch.no_grad():
            right = torch.allclose(loaded(x), module(x))
        report = loaded.preheat
        print(json.dumps([right, report.form, report.misses, [r.kind for r in report.reasons]]))
    """
    done = zoo.python(script)
    assert done.code == 0, done.err
    right, form, misses, _ = done.json()
    assert right
    assert form == "eager" or misses == 1


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_packages_do_not_disturb_each_other_or_plain_compilation(zoo: Project, form: str) -> None:
    script = """
        import json, torch, torch.nn.functional as F, preheat
        from zoo import left, right, model

        x, y = torch.randn(7), torch.randn(4, 8)
        first = preheat.load("left_program", left.program, on_miss="error", form=FORM)
        second = preheat.load("right_program", right.program, on_miss="error", form=FORM)
        broken, again = model.Broken().eval(), model.Broken().eval()
        one = preheat.load("broken", broken, on_miss="error", form=FORM)
        two = preheat.load("broken", again, on_miss="error", form=FORM)
        with torch.no_grad():
            checks = {
                "left": torch.allclose(first(x), left.program(x)),
                "right": torch.allclose(second(x), right.program(x)),
                "one": torch.allclose(one(y), broken(y)),
                "two": torch.allclose(two(y), again(y)),
            }
            plain = torch.compile(model.Inner(), backend="eager")
            checks["plain"] = torch.allclose(plain(x), (x + 1).cos())
            other = torch.compile(model.Encoder(10, F.silu).eval(), backend="eager")
            checks["plain other"] = other(torch.randn(3, 10)).shape == (3, 10)
            checks["left again"] = torch.allclose(first(x), left.program(x))
        checks["misses"] = sum(p.preheat.misses for p in (first, second, one, two)) == 0
        print(json.dumps(checks))
    """
    done = zoo.python(script.replace("FORM", repr(form)))
    assert done.code == 0, done.err
    assert [name for name, held in done.json().items() if not held] == []


def test_a_package_built_as_a_module_is_used_when_the_file_runs_as_main(zoo: Project) -> None:
    import sys

    by_name = zoo.run(sys.executable, "-m", "zoo.mainly")
    by_path = zoo.run(sys.executable, "zoo/mainly.py")
    for done in (by_name, by_path):
        assert done.code == 0, done.err
        assert done.json() == {"same": True, "form": "lean"}


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_two_builds_of_one_target_are_used_from_many_threads(zoo: Project, form: str) -> None:
    script = """
        import concurrent.futures, json, torch, preheat
        from zoo.model import Broken

        module, y = Broken().eval(), torch.randn(4, 8)
        with torch.no_grad():
            wanted = module(y)

        def work(_):
            loaded = preheat.load("broken", module, on_miss="error", form=FORM)
            return all(torch.allclose(loaded(y), wanted) for _ in range(20)), loaded.preheat.misses

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(24)))
        print(json.dumps(all(right and misses == 0 for right, misses in results)))
    """
    done = zoo.python(script.replace("FORM", repr(form)))
    assert done.code == 0, done.err
    assert done.json() is True


def test_importing_preheat_imports_no_torch(zoo: Project) -> None:
    done = zoo.python("import sys, json, preheat; print(json.dumps('torch' in sys.modules))")
    assert done.json() is False
