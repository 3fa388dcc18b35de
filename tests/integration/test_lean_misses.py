"""Calls that a lean image does not cover: each is a miss that says why, or right; never a wrong number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.project import Project

CHANGES = r"""
    import contextlib, json, warnings
    import torch
    import torch.nn.functional as F
    from torch.utils._python_dispatch import TorchDispatchMode
    import preheat
    from preheat.errors import MissError
    from zoo import model

    warnings.simplefilter("error")
    x = torch.randn(8, 16)
    answers = {}


    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))


    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))


    class Other(torch.nn.Linear):
        def forward(self, x):
            return x


    def attempt(name, change=None, argument=x, context=contextlib.nullcontext, undo=None):
        module = model.Encoder().eval()
        loaded = preheat.load("encoder", module, on_miss="error", form="lean")
        with torch.no_grad():
            assert torch.allclose(loaded(x), module(x), atol=1e-5)
        changed = change(module) if change else None
        argument = argument() if callable(argument) else argument
        with context():
            try:
                got = loaded(argument)
            except MissError as error:
                answers[name] = str(error)
            else:
                with torch.no_grad():
                    wanted = module(argument)
                same = got.dtype == wanted.dtype and got.shape == wanted.shape
                same = same and torch.allclose(got, wanted, atol=1e-5)
                answers[name] = "right" if same and not got.requires_grad else "WRONG"
        if undo is not None:
            undo()
        elif hasattr(changed, "remove"):
            changed.remove()


    def doubled(module):
        for parameter in module.parameters():
            parameter.data = parameter.data.double()


    Parameter = torch.nn.Parameter
    attempt("rank", argument=torch.randn(2, 3, 16))
    attempt("dtype", argument=x.double())
    attempt("stride", argument=torch.randn(16, 8).t())
    attempt("argument requires grad", argument=lambda: torch.randn(8, 16, requires_grad=True))
    attempt("argument of inference mode", argument=torch.inference_mode()(lambda: torch.randn(8, 16)))
    attempt("subclass", argument=Parameter(x, requires_grad=False))
    attempt("meta", argument=x.to("meta"))
    attempt("half in place", lambda m: m.half(), x.half())
    attempt("half in place, float argument", lambda m: m.half())
    attempt("data", doubled)
    attempt("frozen weight", lambda m: m.linear.weight.requires_grad_(False))
    attempt("frozen", lambda m: m.requires_grad_(False))
    attempt("other weights", lambda m: setattr(m.linear, "weight", Parameter(torch.ones(16, 16))))
    attempt("strided weights", lambda m: setattr(m.linear, "weight", Parameter(torch.ones(16, 32)[:, ::2])))
    attempt("no bias", lambda m: setattr(m.linear, "bias", None))
    attempt("other child", lambda m: setattr(m, "linear", torch.nn.Linear(16, 16, bias=False)))
    attempt("child's class", lambda m: setattr(m.linear, "__class__", Other))
    attempt("child's forward", lambda m: setattr(m.linear, "forward", lambda x: x))
    attempt("forward", lambda m: setattr(m, "forward", lambda x: x))
    attempt("activation", lambda m: setattr(m, "act", F.gelu))
    attempt("global", lambda m: setattr(model, "SCALE", 3.0), undo=lambda: setattr(model, "SCALE", 1.0))
    attempt("train", lambda m: m.train())
    attempt("another buffer", lambda m: m.register_buffer("more", torch.ones(1)))
    attempt("hook", lambda m: m.register_forward_hook(lambda m, a, o: o + 1))
    attempt("child's hook", lambda m: m.linear.register_forward_hook(lambda m, a, o: o + 1))
    attempt("child's pre-hook", lambda m: m.linear.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))
    every = torch.nn.modules.module
    attempt("hook of all", lambda m: every.register_module_forward_hook(lambda m, a, o: o + 1))
    threads = torch.get_num_threads()
    attempt(
        "threads",
        lambda m: torch.set_num_threads(threads + 1),
        undo=lambda: torch.set_num_threads(threads),
    )
    attempt("default dtype", lambda m: torch.set_default_dtype(torch.float64),
            undo=lambda: torch.set_default_dtype(torch.float32))
    attempt("default device", lambda m: torch.set_default_device("meta"),
            undo=lambda: torch.set_default_device(None))
    attempt("deterministic", lambda m: torch.use_deterministic_algorithms(True),
            undo=lambda: torch.use_deterministic_algorithms(False))
    attempt("autocast", context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    attempt("grad", context=torch.enable_grad)
    attempt("no grad", context=torch.no_grad)
    attempt("inference", context=torch.inference_mode)
    attempt("function mode", context=Functions)
    attempt("dispatch mode", context=Dispatched)
    attempt("saved tensors", context=lambda: torch.autograd.graph.saved_tensors_hooks(abs, abs))
    print(json.dumps(answers))
"""

RIGHT = {
    "another buffer",
    "grad",
    "hook",
    "no grad",
    "other weights",
    "train",
}
SAYS = {
    "rank": "rank mismatch",
    "dtype": "dtype mismatch",
    "stride": "stride mismatch",
    "argument requires grad": "requires_grad mismatch",
    "half in place, float argument": "L['self']._modules['linear']._parameters",
    "data": "L['self']._modules['linear']._parameters",
    "frozen weight": "L['self']._modules['linear']._parameters['weight']' requires_grad",
    "child's hook": "_forward_hooks",
    "child's forward": "forward",
    "forward": "replaced",
    "global": "G['SCALE'] == 1.0",
    "hook of all": "hooks of all modules",
    "threads": "num_threads",
    "default dtype": "default_dtype",
    "autocast": "autocast",
    "deterministic": "deterministic",
    "activation": "L['self'].act",
}


@pytest.fixture(scope="module")
def answers(zoo: Project) -> Any:
    done = zoo.python(CHANGES)
    assert done.code == 0, done.err
    return done.json()


def test_no_change_leads_to_a_wrong_number(answers: Any) -> None:
    assert [name for name, answer in answers.items() if answer == "WRONG"] == []


def test_what_is_still_covered_hits_and_everything_else_is_a_miss(answers: Any) -> None:
    assert {name for name, answer in answers.items() if answer == "right"} == RIGHT


@pytest.mark.parametrize("name", SAYS)
def test_a_miss_names_the_guard_that_does_not_hold(answers: Any, name: str) -> None:
    assert SAYS[name] in answers[name]
    assert "Encoder.forward" in answers[name]


def test_closures_and_resume_functions_see_their_free_variables(lean_project: Project) -> None:
    script = """
        import gc, json, torch, preheat
        from preheat.errors import MissError
        from lean import model

        def misses(call, *args):
            try:
                call(*args)
            except MissError as error:
                return str(error)
            return "hit"

        program, x = model.scaled(3.0), torch.randn(6)
        answers = {}
        for form in ("lean", "dynamo"):
            loaded = preheat.load("closure", program, on_miss="error", form=form)
            with torch.no_grad():
                right = torch.allclose(loaded(x), program(x)) and torch.allclose(
                    loaded(x, power=2), program(x, power=2)
                )
            other = preheat.load("closure", model.scaled(5.0), on_miss="error", form=form)
            cell = program.__closure__[program.__code__.co_freevars.index("factor")]
            power = misses(loaded, x, 3)
            cell.cell_contents = 4.0
            changed = misses(loaded, x)
            cell.cell_contents = 3.0
            answers[form] = [right, loaded.preheat.form, power, misses(other, x), changed]
            del loaded, other
        gc.collect()
        answers["left"] = [name for name in vars(model) if "__preheat_" in name]
        print(json.dumps(answers))
    """
    done = lean_project.python(script)
    assert done.code == 0, done.err
    answer = done.json()
    assert answer.pop("left") == []
    for form, (right, used, power, other, changed) in answer.items():
        assert (right, used) == (True, form)
        assert "torch_dynamo_resume_in_program" in power
        assert "L['power'] == 2" in power
        assert "L['factor'] == 3.0" in other
        assert "L['factor'] == 3.0" in changed


def test_arguments_of_every_kind_are_told_apart(lean_project: Project) -> None:
    script = """
        import json, torch, preheat
        from preheat.errors import MissError
        from lean.model import signs

        loaded, x, y = preheat.load("signs", signs, on_miss="error"), torch.ones(3), torch.ones(3)
        calls = {
            "plain": ((x,), {}),
            "all": ((x, x, x), {"scale": 3.0, "extra": x}),
            "other scale": ((x, x, x), {"scale": 7.0, "extra": x}),
            "no alias": ((x, y, x), {"scale": 3.0, "extra": x}),
            "other name": ((x, x, x), {"scale": 3.0, "another": x}),
            "an int": ((x, x, x), {"scale": 3, "extra": x}),
            "not a number": ((x, x, x), {"scale": float("nan"), "extra": x}),
            "positional name": ((x,), {"x": x}),
        }
        answers = {}
        for name, (args, kwargs) in calls.items():
            try:
                right = torch.allclose(loaded(*args, **kwargs), signs(*args, **kwargs))
                answers[name] = "right" if right else "WRONG"
            except MissError as error:
                answers[name] = "miss"
        print(json.dumps([answers, loaded.preheat.form]))
    """
    done = lean_project.python(script)
    assert done.code == 0, done.err
    answers, form = done.json()
    assert form == "lean"
    assert {name for name, answer in answers.items() if answer == "right"} == {
        "plain",
        "all",
        "other scale",
    }
    assert "WRONG" not in answers.values()


@pytest.mark.parametrize("policy", ["error", "eager", "compile"])
def test_a_nested_frame_that_is_not_covered_follows_the_policy(
    lean_project: Project, policy: str
) -> None:
    script = """
        import json, sys, warnings, torch, preheat
        from preheat.errors import MissError
        from lean.model import Nested

        module, x = Nested().eval(), torch.randn(3, 4)
        loaded = preheat.load("nested", module, on_miss=POLICY)
        with torch.no_grad():
            answers = [loaded.preheat.form == "lean", torch.allclose(loaded(x), module(x))]
        answers.append(loaded.preheat.misses == 0)
        module.last.linear.weight = torch.nn.Parameter(torch.randn(4, 8)[:, ::2])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.no_grad():
                    said, right = "", torch.allclose(loaded(x), module(x), atol=1e-5)
            except MissError as error:
                said, right = str(error), None
        report = loaded.preheat
        print(json.dumps([answers, said, right, report.misses, report.frames_compiled]))
    """
    done = lean_project.python(script.replace("POLICY", repr(policy)))
    assert done.code == 0, done.err
    answers, said, right, misses, compiled = done.json()
    assert all(answers)
    assert misses == 1
    if policy == "error":
        assert right is None
        assert "Looks.forward" in said
        assert "stride mismatch" in said
    else:
        assert right is True
    assert compiled == (1 if policy == "compile" else 0)
