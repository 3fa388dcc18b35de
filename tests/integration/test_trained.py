"""Lean images with a backward pass: the gradients of eager, without a compiler in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.project import Project
from support.trained import FILES, TARGETS

if TYPE_CHECKING:
    from support.forge import Forge

START = """
    import copy, gc, json, sys, threading, warnings, weakref
    import torch, preheat
    from trained import model

    warnings.simplefilter("ignore")
    torch.manual_seed(0)


    def load(name, fn):
        return preheat.load(name, fn, on_miss="error", form="lean")


    def close(a, b):
        return all(
            x is y is None or (x.dtype == y.dtype and torch.allclose(x, y, atol=1e-5))
            for x, y in zip(a, b, strict=True)
        )


    def compiler():
        return sorted(
            name
            for name in sys.modules
            if name.startswith(("torch._dynamo", "torch._inductor"))
            or name.split(".")[0] in ("sympy", "triton")
        )


    def trained(module, x, times=3):
        '''A few steps of an optimizer: losses, and the parameters and buffers at the end.'''
        optimizer = torch.optim.SGD(list(module.parameters()), lr=0.1)
        losses = []
        for _ in range(times):
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *module.parameters(), *module.buffers()]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Project:
    project = Project(tmp_path_factory.mktemp("trained") / "project", FILES)
    forge.warm(project)
    return project


def answer(project: Project, script: str) -> Any:
    """What a worker prints."""
    done = project.python(START + script)
    assert done.code == 0, done.err
    return done.json()


def test_every_program_has_both_forms(project: Project) -> None:
    without = {name: project.manifest(name).without for name in TARGETS}
    assert without == {name: {} for name in TARGETS}


def test_training_goes_as_it_does_without_compilation_and_imports_no_compiler(
    project: Project,
) -> None:
    script = """
    answer = {}
    for name, make, x in (
        ("net", model.Net, torch.randn(5, 8)), ("broken", model.Broken, torch.randn(3, 4))
    ):
        module = make()
        wanted = trained(copy.deepcopy(module), x)
        before = len(compiler())
        loaded = load(name, module)
        got = trained(loaded, x)
        answer[name] = [close(got, wanted), loaded.preheat.misses, len(compiler()) - before]
    print(json.dumps(answer))
    """
    # The program with a break asks for the compiler itself: it says where to break.
    found = answer(project, script)
    assert found["net"] == [True, 0, 0]
    assert found["broken"][:2] == [True, 0]


def test_views_changes_in_place_and_sizes(project: Project) -> None:
    script = """
    answer = {}
    views, changed, rows = (load(n, getattr(model, n)) for n in ("views", "changed", "rows"))
    half = load("half", model.rows)


    def of_views(fn):
        x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
        a, b, c, d = fn(x, torch.tensor(2.0))
        (a.sum() * 2 + b.square().sum() + c.sum()).backward()
        kinds = [t._is_view() for t in (a, c)] + [t.requires_grad for t in (a, b, c, d)]
        return [a, b, c, d, x.grad], kinds


    (got, kinds), (wanted, others) = of_views(views), of_views(model.views)
    answer["views"] = [
        close(got, wanted), kinds == others
    ]


    def of_changed(fn):
        x, buffer = torch.linspace(0, 1, 4).requires_grad_(), torch.ones(4)
        inner = x * 1.0
        y = fn(inner, buffer)
        (y.sum() + inner.sum()).backward()
        return [y, inner, buffer, x.grad]


    answer["changed"] = close(of_changed(changed), of_changed(model.changed))


    def of_rows(fn, n):
        x, w = torch.linspace(-1, 1, 4 * n).view(n, 4), torch.ones(4, 2).requires_grad_()
        y = fn(x, w)
        y.sum().backward()
        return [y, w.grad]


    answer["rows"] = [close(of_rows(rows, n), of_rows(model.rows, n)) for n in (3, 6, 9, 17)]


    def of_half(fn):
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        w = torch.linspace(-1, 2, 16).view(4, 4).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = fn(x, w)
        y.float().sum().backward()
        return [y, x.grad, w.grad]


    answer["half"] = all(
        torch.allclose(a, b, atol=0.1, rtol=0.02) and a.dtype == b.dtype
        for a, b in zip(of_half(half), of_half(model.rows))
    )
    answer["misses"] = [one.preheat.misses for one in (views, changed, rows, half)]
    print(json.dumps(answer))
    """
    assert answer(project, script) == {
        "views": [True, True],
        "changed": True,
        "rows": [True] * 4,
        "half": True,
        "misses": [0] * 4,
    }


def test_gradients_of_every_layout_and_order(project: Project) -> None:
    script = """
    loaded, answer = load("laid_out", model.laid_out), {}
    x = torch.randn(3, 5, requires_grad=True)
    gradients = {
        "contiguous": torch.randn(5, 3),
        "transposed": torch.randn(3, 5).t(),
        "expanded": torch.ones(()).expand(5, 3),
        "strided": torch.randn(10, 3)[::2],
    }
    for name, gradient in gradients.items():
        (got,) = torch.autograd.grad(loaded(x), x, gradient)
        (wanted,) = torch.autograd.grad(model.laid_out(x), x, gradient)
        answer[name] = close([got], [wanted])
    # Two passes at once, the first one last, and one of them twice.
    a, b = loaded(x), loaded(x * 2)
    first = torch.autograd.grad(b.sum(), x)[0]
    again = torch.autograd.grad(a.sum(), x, retain_graph=True)[0]
    twice = torch.autograd.grad(a.sum(), x)[0]
    answer["order"] = close([first, again, twice], [2 * (2 * x).exp(), x.exp(), x.exp()])
    try:
        a.sum().backward()
        answer["freed"] = "no error"
    except RuntimeError as error:
        answer["freed"] = "a second time" in str(error)
    print(json.dumps(answer))
    """
    assert set(answer(project, script).values()) == {True}


def test_what_autograd_refuses_is_refused(project: Project) -> None:
    script = """
    loaded, answer = load("kept", model.kept), {}


    def error_of(run):
        try:
            run()
        except RuntimeError as error:
            return str(error)
        return "no error"


    def saved_was_changed():
        base = torch.randn(6, requires_grad=True)
        x = base * 1.0
        y = loaded(x)
        x.add_(1)
        y.sum().backward()


    def twice():
        x = torch.randn(6, requires_grad=True)
        (first,) = torch.autograd.grad(loaded(x).sum(), x, create_graph=True)
        assert first.requires_grad
        first.sum().backward()


    answer["changed"] = error_of(saved_was_changed)
    answer["twice"] = error_of(twice)
    print(json.dumps(answer))
    """
    found = answer(project, script)
    assert "modified by an inplace operation" in found["changed"]
    assert "double backward" in found["twice"]


def test_many_threads_train_and_nothing_is_kept_alive(project: Project) -> None:
    script = """
    module = model.Net().eval()
    wanted_module = copy.deepcopy(module)
    kept, answer = load("kept", model.kept), []


    def work(number):
        x = torch.randn(6, generator=torch.Generator().manual_seed(number), requires_grad=True)
        for _ in range(50):
            (got,) = torch.autograd.grad(kept(x).sum(), x)
            answer.append(close([got], [x.exp() * (x.sin() + x.cos())]))


    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


    def watched():
        base = torch.randn(6, requires_grad=True)
        y = kept(base)
        reference = weakref.ref(base)
        y.sum().backward()
        del base, y
        return reference


    references = [watched() for _ in range(3)]
    print(json.dumps([all(answer), len(answer), [r() is None for r in references]]))
    """
    assert answer(project, script) == [True, 400, [True] * 3]


def test_a_call_without_gradients_is_not_covered(project: Project) -> None:
    script = """
    from preheat.errors import MissError

    loaded = load("kept", model.kept)
    try:
        with torch.no_grad():
            loaded(torch.randn(6))
        print(json.dumps("no miss"))
    except MissError as error:
        print(json.dumps("requires_grad" in str(error) or "grad" in str(error)))
    """
    assert answer(project, script) is True


def test_the_proof_ran_the_backward_pass_that_nobody_asked_for(project: Project) -> None:
    manifest = project.manifest("kept")
    assert not manifest.spec.backward
    proof = manifest.proof
    assert proof is not None
    assert {one.form for one in proof.forms} == {"lean", "dynamo"}
