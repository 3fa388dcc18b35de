"""Images made by hand, loaded: variants, misses, live code, and what is left behind."""

from __future__ import annotations

import concurrent.futures
import gc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from preheat.errors import CorruptedError, IncompatibleError, MissError
from preheat.image.format import Check
from support import images
from support.images import Loaded, graph_of, image_of, program, variant_for

if TYPE_CHECKING:
    from preheat.image.format import Image


def test_a_call_that_the_guards_allow_runs_the_compiled_code() -> None:
    loaded = Loaded(image_of())
    x = torch.linspace(0, 1, 3)
    assert torch.equal(loaded(x), program(x))
    assert torch.equal(loaded(x, 3.0), program(x, 3.0))
    assert torch.equal(loaded(x=x, scale=0.5), program(x, 0.5))
    assert loaded.misses == []


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(4),
        torch.ones(3, 1),
        torch.ones(3, dtype=torch.float64),
        torch.ones(6)[::2],
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64).conj(),
        3.0,
    ],
    ids=["size", "rank", "dtype", "stride", "grad", "conjugate", "no tensor"],
)
def test_other_arguments_miss_with_the_guard_that_does_not_hold(x: Any) -> None:
    loaded = Loaded(image_of())
    with pytest.raises(MissError, match=r"L\['x'\]"):
        loaded(x)


def test_a_miss_that_is_left_to_python_runs_the_original() -> None:
    loaded = Loaded(image_of(), answer="eager")
    x = torch.linspace(0, 1, 7)
    assert torch.equal(loaded(x), program(x))
    assert len(loaded.misses) == 1


def test_wrong_arguments_raise_what_the_function_itself_raises() -> None:
    loaded = Loaded(image_of())
    for call in (lambda f: f(), lambda f: f(1, 2, 3), lambda f: f(x=1, other=2)):
        with pytest.raises(TypeError) as ours:
            call(loaded)
        with pytest.raises(TypeError) as own:
            call(program)
        assert str(ours.value).split("()")[-1] == str(own.value).split("()")[-1]


def test_threads_with_different_shapes_get_their_own_answers() -> None:
    sizes = range(2, 10)
    loaded = Loaded(image_of(*(variant_for(torch.ones(size)) for size in sizes)))

    def work(size: int) -> bool:
        x = torch.linspace(0, 1, size)
        return all(torch.equal(loaded(x), program(x)) for _ in range(300))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, sizes))
    assert loaded.misses == []


def test_globals_go_with_the_loaded_image_and_only_its_own() -> None:
    scope = vars(images)
    gc.collect()
    with images.globals_kept(scope) as before:
        first, second = Loaded(image_of()), Loaded(image_of())
        assert len(set(scope) - before) == 2
        del first
        gc.collect()
        assert len(set(scope) - before) == 1
        x = torch.ones(3)
        assert torch.equal(second(x), program(x))
        del second
        gc.collect()
        assert set(scope) == before


def test_code_that_was_replaced_after_loading_is_never_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = Loaded(image_of(), answer="eager")
    x = torch.ones(3)
    loaded(x)

    def edited(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x.cos() * scale

    monkeypatch.setattr(program, "__code__", edited.__code__)
    assert torch.equal(loaded(x), x.cos() * 2)
    assert len(loaded.misses) == 1


def test_defaults_that_were_replaced_after_loading_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(image_of())
    x = torch.ones(3)
    assert torch.equal(loaded(x), x.sin() * 2)
    monkeypatch.setattr(program, "__defaults__", (5.0,))
    assert torch.equal(loaded(x), x.sin() * 5)


class Doubler(torch.nn.Module):
    """A module whose forward takes what ``program`` takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2


def _doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
    return __compiled_fn_0(x)[0] * 2  # type: ignore[name-defined, no-any-return]  # noqa: F821


def _image_of_module() -> Image:
    from preheat.image.codes import entry_code
    from preheat.sources.digest import code_digest

    code = Doubler.forward.__code__
    image = image_of()
    variant = variant_for(
        torch.ones(3), _doubled.__code__, guards=images.tensor_guards("x", 1, torch.ones(3))
    )
    unit = msgspec.structs.replace(
        image.units[0],
        module=__name__,
        digest=code_digest(code),
        entry=entry_code(code),
        variants=(variant,),
    )
    moved = tuple(msgspec.structs.replace(one, module=__name__) for one in image.globals)
    return msgspec.structs.replace(image, units=(unit,), globals=moved)


def test_a_forward_that_was_replaced_after_loading_is_never_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(3)
    on_instance, on_class = Doubler(), Doubler()
    first = Loaded(_image_of_module(), on_instance, answer="eager")
    second = Loaded(_image_of_module(), on_class, answer="eager")
    assert torch.equal(first(x), x.sin() * 2)
    assert first.misses == second.misses == []
    on_instance.forward = lambda x: x.cos()  # type: ignore[method-assign]
    assert torch.equal(first(x), x.cos())
    monkeypatch.setattr(Doubler, "forward", lambda self, x: x.tan())
    assert torch.equal(second(x), x.tan())
    assert len(first.misses) == len(second.misses) == 1


def test_hooks_that_are_added_after_loading_run() -> None:
    x, module = torch.ones(3), Doubler()
    loaded = Loaded(_image_of_module(), module)
    handle = module.register_forward_hook(lambda _, args, output: output + 1)
    assert torch.equal(loaded(x), module(x))
    handle.remove()
    assert torch.equal(loaded(x), module(x))
    assert loaded.misses == []


@pytest.mark.parametrize("module", [False, True])
def test_hooks_of_all_modules_are_a_miss(module: bool) -> None:
    """Whether they apply to something inside of the program, nothing in an image says."""
    fn = Doubler() if module else program
    loaded = Loaded(_image_of_module() if module else image_of(), fn, answer="eager")
    x = torch.ones(3)
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda _, args: (args[0] * 2,)):
        assert torch.equal(loaded(x), fn(x))  # type: ignore[operator]
    assert torch.equal(loaded(x), fn(x))  # type: ignore[operator]
    assert loaded.misses == ["hooks of all modules are installed in this process"]


@pytest.mark.parametrize(
    ("field", "value", "symbol"),
    [("interpreter", b"\x00\x01\r\n", "interpreter"), ("torch", "1.0.0", "torch")],
)
def test_an_image_of_another_interpreter_or_torch_says_so(
    field: str, value: Any, symbol: str
) -> None:
    with pytest.raises(IncompatibleError) as caught:
        Loaded(image_of(**{field: value}))
    (reason,) = caught.value.reasons
    assert reason.kind == "environment_differs"
    assert symbol in (reason.symbol or "")


def test_other_live_code_is_refused() -> None:
    def other(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x.cos() * scale

    with pytest.raises(IncompatibleError) as caught:
        Loaded(image_of(), other)
    assert [reason.kind for reason in caught.value.reasons] == ["live_code_differs"]


def test_a_value_that_changed_before_loading_leaves_no_variant() -> None:
    import marshal

    check = Check("G['SETTINGS']['x']", "value", marshal.dumps(("literal", "int", "1")))
    image = image_of(variant_for(torch.ones(3), load_checks=(check,)))
    with pytest.raises(IncompatibleError) as caught:
        Loaded(image)
    (reason,) = caught.value.reasons
    assert (reason.kind, reason.symbol) == ("value_changed", "G['SETTINGS']['x']")


def test_a_graph_without_its_entry_is_corrupt() -> None:
    with pytest.raises(CorruptedError, match="does not define"):
        Loaded(image_of(graphs=(graph_of("x = 1\n"),)))
