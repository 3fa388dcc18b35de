"""Which functions run, and which names classes have from libraries."""

from __future__ import annotations

import sys
import types

import pytest

from preheat.recording.calls import watching_calls
from preheat.recording.inherited import inherited_names

TEXT = """
class A(dict):
    def one(self):
        return [self.two(n) for n in (1, 2)]
    def two(self, n):
        return n
    def three(self):
        return 3
def outer():
    def inner():
        return A().one()
    return inner
def generator():
    yield 1
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("made_for_this")
    exec(compile(TEXT, "/nowhere/made.py", "exec"), made.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "made_for_this", made)
    return made


def test_functions_that_run_are_collected(module: types.ModuleType) -> None:
    with watching_calls() as watch:
        module.outer()()
        next(module.generator())
    module.A().three()
    names = {name for _, name in watch.names({"/nowhere/made.py": "made_for_this"})}
    assert {"outer", "outer.<locals>.inner", "A.one", "A.two", "generator"} <= names
    assert "A.three" not in names
    assert watch.names({}) == ()


def test_a_second_watch_sees_what_ran_in_the_first(module: types.ModuleType) -> None:
    for _ in range(2):
        with watching_calls() as watch:
            module.outer()()
        assert ("m", "A.one") in watch.names({"/nowhere/made.py": "m"})


def test_class_bodies_are_no_functions() -> None:
    with watching_calls() as watch:
        exec(compile(TEXT, "/nowhere/made.py", "exec"), {"__name__": "m"})  # noqa: S102
    assert watch.names({"/nowhere/made.py": "m"}) == ()


def test_names_from_libraries(module: types.ModuleType) -> None:
    names = inherited_names(["made_for_this", "not_imported"])
    assert {"keys", "update"} <= set(names)
    assert not {"one", "__init__"} & set(names)
