"""Entry points: they bind arguments exactly as the function that they stand for."""

from __future__ import annotations

import types
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from preheat.image.codes import GuardedVariant, Variants, entry_code, entry_point

NAMES = ("a", "b", "c", "_L", "_variant", "_variants", "_cells", "_cell", "entry", "self")


class Always:
    """Guards that hold, and remember the locals that they saw."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def check(self, local_scope: dict[str, Any]) -> bool:
        self.seen.append(dict(local_scope))
        return True

    def why_not(self, local_scope: dict[str, Any]) -> str:
        return "a guard"


class Never(Always):
    def check(self, local_scope: dict[str, Any]) -> bool:
        super().check(local_scope)
        return False


@st.composite
def signatures(draw: st.DrawFn) -> str:
    names = list(draw(st.permutations(NAMES)))
    parts = []
    has_default = False

    def parameters(count: int, ordered: bool) -> None:
        nonlocal has_default
        for _ in range(count):
            default = (has_default and ordered) or draw(st.booleans())
            has_default |= default and ordered
            parts.append(names.pop() + (f"={draw(st.integers(0, 9))}" if default else ""))

    only = draw(st.integers(0, 2))
    parameters(only, True)
    if only:
        parts.append("/")
    parameters(draw(st.integers(0, 2)), True)
    keywords = draw(st.integers(0, 2))
    if draw(st.booleans()):
        parts.append("*" + names.pop())
    elif keywords:
        parts.append("*")
    parameters(keywords, False)
    if draw(st.booleans()):
        parts.append("**" + names.pop())
    return ", ".join(parts)


def function_with(signature: str) -> types.FunctionType:
    scope: dict[str, Any] = {}
    exec(f"def function({signature}):\n    return dict(locals())\n", scope)  # noqa: S102
    made: types.FunctionType = scope["function"]
    return made


def outcome(function: Any, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error).partition("()")[2]


@settings(max_examples=150, deadline=None)
@given(
    signatures(),
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from([*NAMES, "other"]), st.integers(), max_size=4),
)
def test_arguments_are_bound_as_the_function_itself_binds_them(
    signature: str, args: list[int], kwargs: dict[str, int]
) -> None:
    function = function_with(signature)
    guards, refusing = Always(), Never()
    code = entry_code(function.__code__)
    hit = entry_point(code, function, (), Variants([GuardedVariant(guards, function)], _fail))
    miss = entry_point(
        code, function, (), Variants([GuardedVariant(refusing, _never)], lambda why: function)
    )
    wanted = outcome(function, args, kwargs)
    assert outcome(hit, args, kwargs) == wanted
    assert outcome(miss, args, kwargs) == wanted
    if isinstance(wanted, dict):
        assert guards.seen == refusing.seen == [wanted]


def _fail(why: str) -> Any:
    raise AssertionError(why)


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("its guards do not hold")


def test_a_comprehensions_argument_has_a_name_that_nobody_can_write() -> None:
    outer = compile("[x for x in y]", "<text>", "eval")
    nested = [c for c in outer.co_consts if isinstance(c, types.CodeType)]
    code = nested[0] if nested else (i for i in ()).gi_code
    assert code.co_varnames[0] == ".0"
    guards = Always()
    function = types.FunctionType(code, {})
    entry = entry_point(
        entry_code(code),
        function,
        (),
        Variants([GuardedVariant(guards, lambda values: list(values))], _fail),
    )
    assert entry([1, 2]) == [1, 2]
    assert guards.seen == [{".0": [1, 2]}]


def test_guards_see_free_variables_of_the_moment_of_the_call() -> None:
    value = 1

    def function(x: int) -> int:
        return x + value  # noqa: F821  deleted below

    guards = Always()
    entry = entry_point(
        entry_code(function.__code__),
        function,
        function.__closure__ or (),
        Variants([GuardedVariant(guards, function)], _fail),
    )
    assert entry(1) == 2
    value = 5
    assert entry(1) == 6
    del value
    entry.__globals__["_variants"] = Variants([GuardedVariant(guards, lambda x: x)], _fail)
    assert entry(1) == 1
    assert guards.seen == [{"x": 1, "value": 1}, {"x": 1, "value": 5}, {"x": 1}]


def test_a_miss_says_every_variants_reason_once() -> None:
    said = []

    def on_miss(why: str) -> Any:
        said.append(why)
        return lambda *args: args

    def function(x: int) -> Any: ...

    refusing = [GuardedVariant(Never(), _never), GuardedVariant(Never(), _never)]
    entry = entry_point(entry_code(function.__code__), function, (), Variants(refusing, on_miss))
    assert entry(3) == (3,)
    without = entry_point(entry_code(function.__code__), function, (), Variants([], on_miss))
    assert without(4) == (4,)
    assert said == ["a guard", "no variant of this code is in the package"]


class Holding(Always):
    """Guards that hold for one value."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self._value = value

    def check(self, local_scope: dict[str, Any]) -> bool:
        super().check(local_scope)
        return bool(local_scope["x"] == self._value)


def test_the_variant_that_answered_last_is_asked_first() -> None:
    def function(x: int) -> Any: ...

    first, second, third = (GuardedVariant(Holding(n), lambda x: x) for n in range(3))
    variants = Variants([first, second, third], lambda why: lambda x: "missed")
    entry = entry_point(entry_code(function.__code__), function, (), variants)
    assert entry(2) == 2
    assert variants.order == (third, first, second)
    assert entry(1) == 1
    assert variants.order == (second, third, first)
    assert entry(1) == 1
    assert entry(9) == "missed"
    assert variants.order == (second, third, first)
