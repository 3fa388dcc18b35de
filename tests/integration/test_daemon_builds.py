"""Builds with a double of the interpreter: how each kind of end is told, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING

import pytest
from test_daemon_double import environment, make_project, write_double

from preheat.manifest import environment_digest
from preheat.store import build_lock
from preheatd import events, logs
from preheatd.config import load_config
from preheatd.outcome import BuildRequest, Outcome
from preheatd.probe import ProbeAnswer, ProbeError, Question, ask, question_key
from preheatd.project import Project, open_project
from preheatd.stages import Stages

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.state import Failure

LIMIT_SECONDS = 300.0
ENVIRONMENT = environment_digest(environment())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", "/not/for/builds")


def project_at(path: Path, *, extra: str = "", **control: str) -> Project:
    file = make_project(path / "project", ("encoder",), extra=extra, **control)
    return open_project(load_config(file), create=True)


def request(project: Project) -> BuildRequest:
    return BuildRequest(target=project.config.targets[0], environment=ENVIRONMENT, device="cpu")


async def build(project: Project, heard: list[events.Event] | None = None) -> Outcome:
    async with asyncio.timeout(LIMIT_SECONDS):
        # The survey is what teaches the project its environments.
        await project.inventory.survey(project.config)
        return await project.build(request(project), (heard if heard is not None else []).append)


def failed(outcome: Outcome) -> Failure:
    assert outcome.result == "failed"
    assert outcome.failure is not None
    return outcome.failure


def log(project: Project) -> str:
    return project.state.log("encoder", ENVIRONMENT).read_text(errors="replace")


def assert_nothing_left(project: Project) -> None:
    assert list(project.state.work.iterdir()) == []


async def until(path: Path) -> str:
    """The content of a file that another process writes, as soon as there is some."""
    return await asyncio.to_thread(_until, path)


def _until(path: Path) -> str:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise TimeoutError(path)


def is_running(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped by its new parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_ended(words: str) -> None:
    """Nothing is left of these processes; what was killed may still be on its way out."""
    end = time.monotonic() + LIMIT_SECONDS
    while any(is_running(int(pid)) for pid in words.split()):
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_what_a_process_leaves_running_does_not_hold_its_build_up(tmp_path: Path) -> None:
    """A child that keeps the output open, in the process's group: the build ends, and the child with it."""
    project = project_at(tmp_path, build="leaves_a_child")
    outcome = await build(project)
    assert outcome.result == "built", outcome
    assert_ended(await until(project.config.project / "running-encoder"))


async def test_a_build_is_proven_and_published(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    heard: list[events.Event] = []

    outcome = await build(project, heard)

    assert outcome.result == "built", outcome
    found = project.store.read_package("encoder", ENVIRONMENT)
    assert found is not None
    assert found[1].proof is not None
    assert found[1] == outcome.manifest
    opened = project.store.open_object(found[1].objects()[0])
    assert opened.read() == b"compiled encoder"
    opened.close()
    assert [event.phase for event in heard] == ["import", "proof"]
    assert_nothing_left(project)


async def test_a_form_that_is_not_proven_is_left_out(tmp_path: Path) -> None:
    project = project_at(tmp_path, build="two_forms", proof="two_forms")
    outcome = await build(project)
    assert outcome.result == "built", outcome
    found = project.store.read_package("encoder", ENVIRONMENT)
    assert found is not None
    assert found[1].is_proven()
    assert [form.kind for form in found[1].forms] == ["dynamo"]
    assert found[1].without == {"lean": "proof: The lean form does not load."}
    assert "the lean form was not proven and is left out" in log(project)


async def test_what_the_processes_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches are shared by builds and withheld from proofs; nothing meant for the daemon is passed."""
    project = project_at(tmp_path)
    seen: dict[str, dict[str, str]] = {}
    run = Stages.run

    async def spy(
        self: Stages, stage: str, arguments: object, variables: dict[str, str], *how: object
    ) -> None:
        seen[stage] = dict(variables)
        assert os.listdir(variables["TORCHINDUCTOR_CACHE_DIR"]) == []  # noqa: PTH208
        await run(self, stage, arguments, variables, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(Stages, "run", spy)
    await build(project)

    caches = project.state.path / "caches" / ENVIRONMENT
    assert seen["build"]["TORCHINDUCTOR_CACHE_DIR"] == str(caches / "inductor")
    assert seen["build"]["TRITON_CACHE_DIR"] == str(caches / "triton")
    assert seen["build"]["TMPDIR"] == str(caches / "tmp")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        assert not seen["proof"][name].startswith(str(caches))
    assert "NOTIFY_SOCKET" not in seen["build"]
    assert seen["build"]["PYTHONPATH"].split(os.pathsep)[0] == str(project.config.project)


async def test_a_failure_is_told_as_the_process_told_it(tmp_path: Path) -> None:
    project = project_at(tmp_path, build="fail")
    failure = failed(await build(project))

    assert (failure.kind, failure.phase, failure.exit_code) == ("target", "start", 3)
    assert "app.encoder:encoder raised ZeroDivisionError" in failure.message
    assert failure.remedy == "Correct the factory."
    assert "the factory raised" in project.state.log_tail("encoder", ENVIRONMENT)
    assert project.store.read_ref("encoder", ENVIRONMENT) is None
    assert_nothing_left(project)


async def test_a_refusal_is_told_apart(tmp_path: Path) -> None:
    assert failed(await build(project_at(tmp_path, build="refuse"))).refused


async def test_garbage_on_standard_output_is_logged(tmp_path: Path) -> None:
    project = project_at(tmp_path, build="garbage")
    assert (await build(project)).result == "built"
    assert "a library prints" in log(project)
    assert "x" * 1001 not in log(project)


async def test_a_long_log_is_bounded(tmp_path: Path) -> None:
    project = project_at(tmp_path, build="noisy")
    assert (await build(project)).result == "built"
    assert "first line" in log(project)
    assert "last line" in log(project)
    assert len(log(project)) <= logs.HEAD_BYTES + 2 * logs.TAIL_BYTES + 100


@pytest.mark.parametrize(
    ("stage", "action", "kind", "words"),
    [
        ("build", "segv", "build_crashed", ["build process", "SIGSEGV"]),
        ("build", "killed", "build_crashed", ["SIGKILL", "memory"]),
        ("build", "exit3", "build_failed", ["exit status 3"]),
        ("build", "silent", "no_result", ["built nothing"]),
        ("proof", "segv", "proof_crashed", ["proof process", "SIGSEGV", "`proof`"]),
        ("proof", "exit3", "proof_failed", ["exit status 3"]),
        ("proof", "silent", "no_proof", ["proved nothing"]),
        ("proof", "fail", "target", ["ZeroDivisionError"]),
    ],
)
async def test_a_process_that_ends_badly(
    tmp_path: Path, stage: str, action: str, kind: str, words: list[str]
) -> None:
    project = project_at(tmp_path, **{stage: action})
    failure = failed(await build(project))

    assert failure.kind == kind
    assert all(word in failure.message for word in words), failure.message
    assert project.store.read_ref("encoder", ENVIRONMENT) is None
    assert_nothing_left(project)


async def test_an_interpreter_that_went_away(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    (tmp_path / "project" / "python").unlink()
    failure = failed(await project.build(request(project), lambda event: None))
    assert failure.kind == "interpreter_failed"
    assert "python" in failure.message


async def test_a_package_for_another_environment_is_refused(tmp_path: Path) -> None:
    failure = failed(await build(project_at(tmp_path, build="other_environment")))
    assert failure.kind == "environment_differs"
    assert [reason.symbol for reason in failure.reasons] == ["torch"]
    assert "torch" in failure.message


@pytest.mark.parametrize("stage", ["build", "proof"])
async def test_a_build_that_takes_too_long(tmp_path: Path, stage: str) -> None:
    for seconds in (2, 20, 200):
        directory = tmp_path / str(seconds)
        project = project_at(directory, extra=f"timeout = {seconds}\n", **{stage: "hang"})
        failure = failed(await build(project))

        assert (failure.kind, failure.exit_code) == ("timed_out", 4)
        assert f"{seconds} s" in failure.message
        assert_nothing_left(project)
        running = directory / "project" / "running-encoder"
        if running.exists():  # else it had no time to begin
            break
    assert_ended(running.read_text())


@pytest.mark.parametrize("action", ["hang", "stubborn"])
async def test_cancelling_ends_every_process(tmp_path: Path, action: str) -> None:
    """Also one that ignores SIGTERM, and the children of each."""
    project = project_at(tmp_path, build=action)
    task = asyncio.create_task(build(project))
    pids = await until(tmp_path / "project" / "running-encoder")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert_ended(pids)
    assert_nothing_left(project)
    with build_lock(project.config.store, "encoder", ENVIRONMENT):
        pass


async def test_cancelling_while_publishing_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_at(tmp_path)
    loop = asyncio.get_running_loop()
    task: asyncio.Task[Outcome]
    publish = Project.publish

    def cancelled_meanwhile(self: Project, staging: Path, manifest: object) -> None:
        loop.call_soon_threadsafe(task.cancel)
        time.sleep(0.05)
        publish(self, staging, manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(Project, "publish", cancelled_meanwhile)
    task = asyncio.create_task(build(project))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert project.store.read_package("encoder", ENVIRONMENT) is not None


async def test_sources_that_changed_meanwhile_are_not_published(tmp_path: Path) -> None:
    project = project_at(tmp_path, build="edit_then_ok")
    outcome = await build(project)

    assert outcome.result == "superseded"
    assert [reason.kind for reason in outcome.reasons] == ["module_edited"]
    assert outcome.reasons[0].file == "app/encoder.py"
    assert project.store.read_ref("encoder", ENVIRONMENT) is None
    assert_nothing_left(project)


async def test_a_build_that_somebody_else_has(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    with build_lock(project.config.store, "encoder", ENVIRONMENT):
        outcome = await build(project)
    assert outcome.result == "held"
    assert str(os.getpid()) in outcome.holder


async def test_an_interpreter_is_asked_once(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    for _ in range(2):
        await project.inventory.survey(project.config)
    again = open_project(project.config, create=True)
    survey = await again.inventory.survey(again.config)

    assert survey.of("encoder").environment == ENVIRONMENT
    assert (tmp_path / "project" / "double.log").read_text().split() == ["environment"]


async def test_an_answer_that_was_wrong_is_asked_for_again(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    await project.inventory.survey(project.config)
    write_double(tmp_path / "project", environment="two")
    assert failed(await build(project)).kind == "environment_differs"

    survey = await project.inventory.survey(project.config)
    assert survey.of("encoder").environment == environment_digest(environment("two"))


def question(project: Project) -> Question:
    return Question(
        project.config.targets[0].python, project.config.project, tuple(os.environ.items())
    )


def test_what_makes_an_answer_old(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    one = question(project)
    key = question_key(one)

    assert question_key(one) == key
    more = Question(one.python, one.cwd, (*one.variables, ("CXX", "clang++")))
    assert question_key(more) != key
    volatile = Question(one.python, one.cwd, (*one.variables, ("SSH_TTY", "/dev/pts/1")))
    assert question_key(volatile) == key
    (tmp_path / "project" / "python").write_text("#!/bin/sh\n")
    assert question_key(one) != key


async def test_an_interpreter_that_does_not_answer(tmp_path: Path) -> None:
    project = project_at(tmp_path, probe="broken")
    with pytest.raises(ProbeError, match="No module named 'torch'"):
        await ask(question(project))

    survey = await project.inventory.survey(project.config)
    failure = survey.of("encoder").failure
    assert failure is not None
    assert (failure.kind, failure.exit_code) == ("probe", 3)

    (tmp_path / "project" / "python").write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(ProbeError, match="known form"):
        await ask(question(project))
    (tmp_path / "project" / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(ProbeError, match="did not answer within"):
        await ask(question(project), limit=0.1)


async def test_an_answer_after_what_libraries_print(tmp_path: Path) -> None:
    answer = await ask(question(project_at(tmp_path)))
    assert isinstance(answer, ProbeAnswer)
    assert answer.digests["cpu"] == ENVIRONMENT


async def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    project = project_at(tmp_path, extra='device = "cuda"\n')
    failure = (await project.inventory.survey(project.config)).of("encoder").failure
    assert failure is not None
    assert failure.kind == "device_missing"
    assert "`cuda`" in failure.message


async def test_a_log_is_closed_whenever_it_is_cancelled(tmp_path: Path) -> None:
    """A file that is left open is a warning, and warnings fail this test."""
    for step in range(12):

        async def use() -> None:
            async with logs.BoundedLog(tmp_path / "log") as log:
                await log.write(b"words")
                await asyncio.sleep(600)

        task = asyncio.create_task(use())
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()
