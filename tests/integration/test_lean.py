"""Lean images in workers: no compiler is imported, and one that is there is not disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.project import Project

CALLS = """
    import gc, json, sys, threading, traceback, warnings
    import torch
    import torch.nn.functional as F


    def compiler():
        roots = {("torch", "_dynamo"), ("torch", "_inductor")}
        return {
            name
            for name in sys.modules
            if tuple(name.split(".")[:2]) in roots or name.split(".")[0] in ("sympy", "triton")
        }


    before = compiler()
    import preheat
    from zoo import left, mainly, model, right

    CALLS = {
        "encoder": (model.Encoder().eval(), torch.randn(8, 16)),
        "wide_gelu": (model.Encoder(24, F.gelu).eval(), torch.randn(4, 24)),
        "counter": (model.Counter(), torch.randn(3)),
        "random": (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)), torch.randn(4, 8)),
        "modes": (model.by_mode, torch.randn(6), model.Mode.ONCE),
        "left_program": (left.program, torch.randn(7)),
        "right_program": (right.program, torch.randn(7)),
        "mainly": (mainly.program, torch.linspace(0, 1, 12)),
    }


    def agrees(name, fn, *args):
        loaded = preheat.load(name, fn, on_miss="error", form="lean")
        torch.manual_seed(0)
        got = loaded(*args)
        torch.manual_seed(0)
        with torch.no_grad():
            wanted = fn(*args)
        kind = (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        same = name in ("random", "counter") or torch.allclose(got, wanted, atol=1e-5)
        return kind and same and loaded.preheat.misses == 0


    def plainly():
        x = torch.randn(3, 10)
        module = model.Encoder(10).eval()
        # The whole compiler, and one that only traces.
        whole = torch.compile(lambda x: x.sin() + 1)
        return torch.allclose(whole(x), x.sin() + 1, atol=1e-5) and torch.allclose(
            torch.compile(module, backend="eager")(x), module(x), atol=1e-5
        )
"""


def test_neither_load_nor_call_imports_the_compiler(zoo: Project) -> None:
    script = """
    added = {"import": sorted(compiler() - before)}
    for name, call in CALLS.items():
        assert agrees(name, *call), name
        added[name] = sorted(compiler() - before)
    print(json.dumps([added, sorted(before)]))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    added, before = done.json()
    assert not any(added.values()), added
    assert before == []


def test_a_load_is_not_interrupted_by_a_search_for_garbage(zoo: Project) -> None:
    """Looking through the objects of torch takes longer than the load itself."""
    switch_off = """
    import contextlib, preheat.garbage
    preheat.garbage.without_collector = contextlib.nullcontext
    """
    script = """
    heard = []
    gc.callbacks.append(lambda phase, info: heard.append(phase))
    module = model.Encoder().eval()
    gc.set_threshold(1, 1, 1)
    loaded = preheat.load("encoder", module, on_miss="error")
    during = len(heard)
    more = [[] for _ in range(100)]
    print(json.dumps([loaded.preheat.form, during, len(heard) - during]))
    """
    (form, during, afterwards), (other, uncontrolled, _) = (
        done.json()
        for done in (zoo.python(CALLS + script), zoo.python(CALLS + switch_off + script))
    )
    assert form == other == "lean"
    assert during < uncontrolled / 5, "the collector works while it is being loaded"
    assert afterwards > 0, "the collector was not switched on again"


def test_plain_compilation_works_between_loads(zoo: Project) -> None:
    script = """
    answers = [all(agrees(name, *call) for name, call in CALLS.items())]
    answers.append(plainly())
    answers.append(all(agrees(name, *call) for name, call in CALLS.items()))
    torch._dynamo.reset()
    answers.append(plainly())
    dynamo = preheat.load("encoder", model.Encoder().eval(), on_miss="error", form="dynamo")
    dynamo(torch.randn(8, 16))
    answers.append(dynamo.preheat.misses == 0)
    answers.append(all(agrees(name, *call) for name, call in CALLS.items()))
    print(json.dumps(answers))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    assert all(done.json()), done.json()


def test_images_load_after_the_compiler_was_used(zoo: Project) -> None:
    script = """
    answers = [plainly(), all(agrees(name, *call) for name, call in CALLS.items()), plainly()]
    print(json.dumps(answers))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    assert all(done.json()), done.json()


def test_images_load_while_another_thread_imports_the_compiler(zoo: Project) -> None:
    """The other thread must never meet the stand-ins that guard trees are built with."""
    script = """
    sys.setswitchinterval(1e-5)
    errors, loads = [], 0


    def compiling():
        try:
            x = torch.randn(5)
            assert torch.allclose(torch.compile(torch.sin, backend="eager")(x), x.sin())
            module, y = model.Encoder(10).eval(), torch.randn(3, 10)
            assert torch.allclose(torch.compile(module, backend="eager")(y), module(y))
        except BaseException:
            errors.append(traceback.format_exc())


    assert agrees("encoder", *CALLS["encoder"])
    thread = threading.Thread(target=compiling)
    thread.start()
    while thread.is_alive() or loads < 20:
        for name in ("encoder", "left_program", "modes"):
            assert agrees(name, *CALLS[name]), name
            loads += 1
    thread.join()
    errors += [] if plainly() else ["wrong"]
    print(json.dumps(errors))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    assert done.json() == []


def test_instances_of_one_target_are_independent(zoo: Project) -> None:
    script = """
    names = lambda: [name for name in vars(model) if "__preheat_" in name]
    x = torch.randn(4, 8)
    modules = [model.Broken().eval() for _ in range(3)]
    loaded = [preheat.load("broken", one, on_miss="error") for one in modules]
    with torch.no_grad():
        wanted = [one(x) for one in modules]
    answers = [loaded[0].preheat.form == "lean"]
    answers += [torch.allclose(a(x), b, atol=1e-5) for a, b in zip(loaded, wanted)]
    answers.append(not torch.allclose(wanted[0], wanted[1]))
    many = len(names())
    del loaded[1]
    gc.collect()
    answers.append(0 < len(names()) < many)
    answers += [torch.allclose(a(x), b, atol=1e-5) for a, b in zip(loaded, wanted[::2])]
    answers.append(not any(one.preheat.misses for one in loaded))
    loaded.clear()
    gc.collect()
    answers.append(names() == [])
    print(json.dumps(answers))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    assert all(done.json()), done.json()


def test_eight_threads_call_one_loaded_program(zoo: Project) -> None:
    script = """
    import concurrent.futures
    sys.setswitchinterval(1e-5)
    modules = {
        "encoder": (model.Encoder().eval(), [(torch.randn(n, 16),) for n in (8, 32, 8, 5)]),
        "modes": (model.by_mode, [(torch.randn(6), mode) for mode in model.Mode]),
    }
    loaded = {
        name: preheat.load(name, fn, on_miss="error", form="lean")
        for name, (fn, _) in modules.items()
    }


    def work(number):
        for name, (fn, calls) in modules.items():
            for turn in range(100):
                args = calls[(number + turn) % len(calls)]
                with torch.no_grad():
                    wanted = fn(*args)
                if not torch.allclose(loaded[name](*args), wanted, atol=1e-5):
                    return False
        return True


    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        right = all(pool.map(work, range(8)))
    print(json.dumps([right, *(one.preheat.misses == 0 for one in loaded.values())]))
    """
    done = zoo.python(CALLS + script)
    assert done.code == 0, done.err
    assert all(done.json()), done.json()


def test_a_program_without_a_lean_form_says_why(lean_project: Project) -> None:
    manifest = lean_project.manifest("overlapping")
    assert manifest.form("lean") is None
    assert manifest.without == {"lean": "inputs that are changed in place overlap in memory"}
    script = """
        import json, torch, preheat
        from preheat.errors import MissError
        from lean.model import overlapping

        base = torch.arange(6.0)
        loaded = preheat.load("overlapping", overlapping, on_miss="error")
        right = loaded(base[:4], base[2:]).tolist() == [30.0, 40.0, 40.0, 50.0]
        try:
            preheat.load("overlapping", overlapping, on_miss="error", form="lean")
            said = []
        except MissError as error:
            said = [(reason.kind, reason.detail) for reason in error.reasons]
        print(json.dumps([right, loaded.preheat.form, loaded.preheat.misses, said]))
    """
    done = lean_project.python(script)
    assert done.code == 0, done.err
    assert done.json() == [True, "dynamo", 0, [["form_not_built", manifest.without["lean"]]]]


def test_what_follows_a_loop_left_to_python_may_call_other_modules_of_torch(
    lean_project: Project,
) -> None:
    """Its guards look at names that are provided for nothing before the loop."""
    script = """
        import json, torch, preheat
        from lean.model import Late

        module, x = Late().eval(), torch.randn(3, 4)
        loaded = preheat.load("late", module, on_miss="error", form="lean")
        with torch.no_grad():
            same = torch.allclose(loaded(x), module(x), atol=1e-6)
        print(json.dumps([same, loaded.preheat.form, loaded.preheat.misses]))
    """
    done = lean_project.python(script)
    assert done.code == 0, done.err
    assert done.json() == [True, "lean", 0]
