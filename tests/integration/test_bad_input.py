"""Everything that a person can get wrong, with real build processes: one clear message each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.project import Done, Project

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "bad/__init__.py": "",
    "bad/broken.py": "def (:\n",
    "bad/warm.py": """
        import preheat
        import torch

        X = torch.ones(4)


        def good():
            return preheat.Spec(lambda x: x + 1, examples=[(X,)], grad=False)


        def raises():
            raise RuntimeError("the weights are missing")


        def returns_nothing():
            pass


        def no_examples():
            return preheat.Spec(torch.sin, examples=[])


        def fails_eagerly():
            return preheat.Spec(lambda x: x @ x[:2], examples=[(X,)], grad=False)


        def no_python_code():
            return preheat.Spec(torch.sin, examples=[(X,)], grad=False)


        def backend_without_artifact():
            return preheat.Spec(lambda x: x + 1, examples=[(X,)], grad=False, backend="eager_noexcept")


        def nothing_to_compile():
            return preheat.Spec(lambda x: 3, examples=[(X,)], grad=False)


        def unknown_option():
            return preheat.Spec(
                lambda x: x + 1, examples=[(X,)], grad=False, options={"no_such_option": 1}
            )


        def dies():
            import os
            import signal

            os.kill(os.getpid(), signal.SIGSEGV)


        def hangs():
            import time

            time.sleep(600)
    """,
    "preheat.toml": """
        targets = [
            "bad.warm:raises",
            "bad.warm:returns_nothing",
            "bad.warm:no_examples",
            "bad.warm:fails_eagerly",
            "bad.warm:no_python_code",
            "bad.warm:backend_without_artifact",
            "bad.warm:nothing_to_compile",
            "bad.warm:unknown_option",
            "bad.warm:dies",
            "bad.warm:missing",
            "bad.nowhere:function",
            "bad.broken:function2",
            "bad.warm:good",
        ]
        jobs = 2

        [[target]]
        name = "hangs"
        factory = "bad.warm:hangs"
        timeout = 20
    """,
}

# A part of the message, for each target that must fail.
EXPECTED = {
    "raises": "raises RuntimeError: the weights are missing",
    "returns_nothing": "returns NoneType, not preheat.Spec",
    "no_examples": "examples is empty",
    "fails_eagerly": "example 0 fails without compilation",
    "no_python_code": "has no Python code",
    "backend_without_artifact": "makes no artifact",
    "nothing_to_compile": "Nothing was compiled",
    "unknown_option": "no_such_option",
    "dies": "SIGSEGV",
    "missing": "has no 'missing'",
    "function": "module 'bad.nowhere' does not exist",
    "function2": "SyntaxError",
    "hangs": "longer than 20 s",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    return Project(tmp_path_factory.mktemp("bad") / "project", FILES, caches)


@pytest.fixture(scope="module")
def warmed(project: Project) -> Done:
    return project.preheat("warm", "--json")


@pytest.fixture(scope="module")
def answers(warmed: Done) -> dict[str, Any]:
    return {target["target"]: target for target in warmed.json()["targets"]}


def test_the_exit_code_is_that_of_a_failed_target(warmed: Done) -> None:
    assert warmed.code == 3
    assert warmed.err == ""


@pytest.mark.parametrize("target", sorted(EXPECTED))
def test_each_failure_says_what_where_and_what_to_do(answers: Any, target: str) -> None:
    answer = answers[target]
    assert answer["result"] == "failed"
    failure = answer["failure"]
    assert EXPECTED[target] in failure["message"], failure
    assert failure["remedy"]


def test_the_good_target_is_built_all_the_same(answers: Any, project: Project) -> None:
    assert answers["good"]["result"] == "built", answers["good"]
    assert project.generation("good") == 1


def test_status_shows_the_failures_and_the_end_of_their_logs(
    project: Project, warmed: Done
) -> None:
    assert warmed.code == 3
    status = project.preheat("status")
    assert status.code == 3
    assert "the weights are missing" in status.out
    assert "Traceback" in status.out


def test_a_missing_compiler_is_said_in_words(project: Project) -> None:
    done = project.preheat("warm", "good", "--json", env={"CXX": "/nonexistent/c++"})
    (answer,) = done.json()["targets"]
    assert done.code == 3
    assert "No C++ compiler" in answer["failure"]["message"]
