"""When a fork may stand in for a fresh process: the decisions, and what the dispatcher makes of them."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from test_daemon_dispatch import Script, order

from preheat import forking, zygote
from preheat.manifest import Proof
from preheat.shadowing import shadowed
from preheatd import events, forked
from preheatd.dispatch import Dispatcher
from preheatd.forks import other_modules
from preheatd.plan import Action, TargetFacts, decide
from preheatd.state import FreshProof, State
from support.manifests import manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.outcome import BuildRequest, Outcome

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="zygotes look at /proc")


@pytest.mark.parametrize(
    ("child", "fresh", "had", "other"),
    [
        (("app", "torch"), ("torch", "app"), {"torch"}, ""),
        (("app",), ("torch", "app", "numpy"), {"torch", "numpy"}, ""),
        (("app", "wave"), ("app",), set(), "wave"),
        (("app",), ("app", "wave"), set(), "wave"),
        (("app", "a", "b"), ("app", "c"), {"c"}, "a, b"),
        (None, ("app",), set(), "there is nothing to compare with"),
        (("app",), None, set(), "there is nothing to compare with"),
    ],
)
def test_modules_that_only_one_of_both_imported(
    child: tuple[str, ...] | None, fresh: tuple[str, ...] | None, had: set[str], other: str
) -> None:
    assert other_modules(child, fresh, frozenset(had)) == other


def test_a_project_that_shadows_what_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    assert "a module named json" in shadowed(str(tmp_path), [])


@pytest.mark.parametrize("name", ["msgspec/__init__.py", "msgspec.cpython-311-x86_64-linux-gnu.so"])
def test_packages_and_extensions_shadow_as_well(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    assert "a module named msgspec" in shadowed(str(tmp_path), [])


def test_directories_without_code_and_other_names_shadow_nothing(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "data.txt").write_text("")
    (tmp_path / "json.txt").write_text("")
    (tmp_path / "of_the_project.py").write_text("")
    assert shadowed(str(tmp_path), [str(tmp_path / "missing")]) == ""


def test_what_was_loaded_from_the_search_path_is_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib_of_theirs.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("lib_of_theirs")
    try:
        assert shadowed(str(tmp_path / "project"), [str(tmp_path)]) == ""
        # Of the project itself nothing may be loaded before user code is.
        assert "a module named lib_of_theirs" in shadowed(str(tmp_path), [])
    finally:
        del sys.modules["lib_of_theirs"]


def test_preheat_in_the_project_is_no_shadow() -> None:
    assert shadowed(os.path.dirname(os.path.dirname(zygote.__file__)), []) == ""  # noqa: PTH120


@LINUX
def test_a_process_with_another_thread_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "loaded_files", list)
    fitness = zygote.Fitness(time.time())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert "threads" in fitness.why_not()
    finally:
        end.set()
        thread.join()


@LINUX
@pytest.mark.parametrize("edit", ["content", "same size and time", "gone", "later than the start"])
def test_a_library_that_was_edited_makes_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    library = tmp_path / "library.py"
    library.write_text("one")
    os.utime(library, (1e9, 1e9))
    monkeypatch.setattr(zygote, "loaded_files", lambda: [str(library)])
    monkeypatch.setattr(zygote, "_count", lambda directory: 1)
    fitness = zygote.Fitness(0.0 if edit == "later than the start" else time.time())
    if edit == "content":
        library.write_text("other")
    elif edit == "same size and time":
        (tmp_path / "new.py").write_text("two")
        (tmp_path / "new.py").replace(library)
        os.utime(library, (1e9, 1e9))
    elif edit == "gone":
        library.unlink()
    assert f"{library} changed" in fitness.why_not()


@LINUX
def test_a_zygote_that_is_as_it_was_is_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library.py"
    library.write_text("one")
    os.utime(library, (1e9, 1e9))
    monkeypatch.setattr(zygote, "loaded_files", lambda: [str(library), "<generated>"])
    monkeypatch.setattr(zygote, "_count", lambda directory: 1)
    assert zygote.Fitness(time.time()).why_not() == ""


@pytest.mark.parametrize(
    "message",
    [
        forking.Ready(modules=("torch",)),
        forking.Forked(number=1, pid=2),
        forking.Ended(number=1, status=-9),
        forking.Unfit(why="it has 2 threads"),
    ],
)
def test_answers_come_back_as_they_were(message: forking.Answer) -> None:
    line = forking.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert forking.read_answer(line) == message


@pytest.mark.parametrize(
    "line", [b"{}", b'{"number":1,"module":"os","job":"j","variables":{}}', b"x"]
)
def test_a_request_for_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        forking.read_request(line)


@LINUX
async def test_a_child_whose_zygote_hangs_is_still_seen_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forked, "_LOOK_SECONDS", 0.05)
    process = await asyncio.create_subprocess_exec("sleep", "60")
    child = forked.ForkedProcess(process.pid, asyncio.StreamReader(), asyncio.StreamReader())
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    process.kill()
    assert await asyncio.wait_for(waiting, 120) == -9
    await process.wait()


async def test_a_zygote_that_does_not_answer_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forked, "_FORK_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with theirs:
        line = forked.Line(ours)
        with pytest.raises(forked.ZygoteUnfit, match="does not answer"):
            await line.fork("preheat.build", "job.json", {})
        assert line.why_not
        line.close()


async def test_a_zygote_that_ends_before_it_is_ready_is_hopeless() -> None:
    ours, theirs = socket.socketpair()
    line = forked.Line(ours)
    listening = asyncio.create_task(line.listen())
    theirs.close()
    await listening
    assert line.hopeless
    with pytest.raises(forked.ZygoteUnfit):
        await line.fork("preheat.build", "job.json", {})


async def test_one_that_answered_and_ended_may_be_started_again() -> None:
    ours, theirs = socket.socketpair()
    line = forked.Line(ours)
    theirs.sendall(forking.encode(forking.Ready(modules=("torch",))))
    theirs.close()
    await line.listen()
    assert (line.modules, line.hopeless, line.why_not) == ({"torch"}, False, "the zygote ended")


def facts_of(*, forked: bool, building: bool = False) -> TargetFacts:
    proof = Proof(forms=(), examples=1, against="eager", seconds=1.0, forked=forked)
    manifest = msgspec.structs.replace(manifest_of(), proof=proof)
    return TargetFacts(
        target=manifest.target,
        factory=manifest.factory,
        environment="e",
        manifest=manifest,
        building=building,
    )


def test_a_forked_proof_is_to_be_confirmed() -> None:
    assert decide(facts_of(forked=True), 0.0).action is Action.CONFIRM
    assert decide(facts_of(forked=False), 0.0).action is Action.NONE
    assert decide(facts_of(forked=True, building=True), 0.0).action is Action.NONE


async def test_proving_once_more_waits_for_builds_and_is_ended_for_them(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    builds, proofs = Script(), Script()
    heard: list[events.Event] = []
    dispatcher = Dispatcher(builds.build, state, jobs=2, emit=heard.append, confirm=proofs.build)
    once_more = dataclasses.replace(order("fresh"), confirm=True)
    task = asyncio.create_task(dispatcher.run())
    try:
        dispatcher.replace_waiting([order("stale")])
        dispatcher.replace_unconfirmed([once_more])
        await builds.until_started("stale")
        await asyncio.sleep(0.05)
        assert proofs.started == []
        builds.end("stale")
        await proofs.until_started("fresh")
        assert dispatcher.running == frozenset()  # it is not being built
        dispatcher.replace_waiting([order("edited")])
        await builds.until_started("edited")
        assert proofs.ended["fresh"].cancelled()
        builds.end("edited")
        dispatcher.replace_unconfirmed([once_more])
        await proofs.until_started("fresh", "fresh")
        proofs.end("fresh", "confirmed")
        await asyncio.sleep(0.05)
    finally:
        task.cancel()
        await asyncio.wait([task])
    told = [event.action for event in heard if event.target == "fresh"]
    assert told == [
        events.PROOF_STARTED,
        events.PROOF_STOPPED,
        events.PROOF_STARTED,
        events.PROOF_CONFIRMED,
    ]


async def test_what_cannot_be_proven_once_more_is_not_tried_again_and_again(tmp_path: Path) -> None:
    tried = []

    async def confirm(request: BuildRequest, emit: events.Emit) -> Outcome:
        tried.append(request.target.name)
        raise OSError("no room")

    state = State(tmp_path)
    state.prepare()
    dispatcher = Dispatcher(Script().build, state, jobs=1, emit=lambda event: None, confirm=confirm)
    once_more = dataclasses.replace(order("fresh"), confirm=True)
    task = asyncio.create_task(dispatcher.run())
    for _ in range(5):
        dispatcher.replace_unconfirmed([once_more])
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    assert tried == ["fresh"]


def test_a_withdrawn_package_is_not_returned_to(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    proof = FreshProof(modules={"lean": ("app",)}, libraries=(), seconds=3.0)
    state.note_fresh_proof("t", "e", proof)
    assert state.fresh_proof("t", "e") == proof
    for digest in ("a" * 64, "b" * 64):
        state.note_published("t", "e", digest)
    state.note_withdrawn("t", "e", "b" * 64)
    state.forget_fresh_proof("t", "e")
    assert state.published("t", "e") == ("a" * 64,)
    assert state.fresh_proof("t", "e") is None
