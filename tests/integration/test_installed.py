"""Packages come and go on one code object while other threads call it."""

from __future__ import annotations

import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.image.nested import _AS_IT_IS
from preheat.torch_internals.installed import Installed, find

if TYPE_CHECKING:
    from collections.abc import Callable

_eval_frame: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
_guards: Any = torch._C._dynamo.guards  # type: ignore[attr-defined]
ROUNDS = 300


def answering(name: str) -> types.CodeType:
    """Code of its own that returns ``name``."""

    def answer() -> str:
        return "python"

    code = answer.__code__
    constants = tuple(name if one == "python" else one for one in code.co_consts)
    return code.replace(co_consts=constants)


def program() -> Callable[[], str]:
    """A function of its own code object."""
    return types.FunctionType(answering("python"), {})


def package(name: str, function: Any) -> Installed:
    """A package whose only variant answers with its name."""
    installed = Installed((name, id(function.__code__)))
    manager = types.SimpleNamespace(root=_guards.RootGuardManager())
    installed.add(function.__code__, manager, answering(name))
    installed.publish()
    return installed


def called(function: Callable[[], str]) -> str:
    before = _eval_frame.set_eval_frame(lambda *_: _AS_IT_IS)
    try:
        return function()
    finally:
        _eval_frame.set_eval_frame(before)


def test_a_package_that_goes_leaves_the_others() -> None:
    function = program()
    assert called(function) == "python"
    first, second = package("first", function), package("second", function)
    assert find(first.key) is first
    assert called(function) in ("first", "second")
    first.uninstall()
    first.uninstall()
    assert find(first.key) is None
    assert called(function) == "second"
    second.uninstall()
    assert called(function) == "python"
    again = package("first", function)
    assert called(function) == "first"
    again.uninstall()


def test_packages_go_while_other_threads_look_through_their_entries() -> None:
    """torch's own removal frees what a thread in the middle of a guard goes on to read."""
    function = program()
    for number in range(50):
        package(f"gone {number}", function).uninstall()
    answers: set[str] = set()
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            answers.add(called(function))

    threads = [threading.Thread(target=call) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns inside of guards as well
    for thread in threads:
        thread.start()
    try:
        for number in range(ROUNDS):
            package(f"package {number}", function).uninstall()
    finally:
        done.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert answers <= {"python", *(f"package {number}" for number in range(ROUNDS))}
    assert called(function) == "python"
