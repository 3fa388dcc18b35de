"""One build on the node that an executor chose: ``python -m preheatd.executors.there DIRECTORY PARENT``.

A store and a state directory of its own, the daemon's own build and proof, and the package as a bundle or
pushed to a store that both nodes reach. Everything that goes wrong is an answer in words.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.differences import differences
from preheat.errors import ConfigurationError, PreheatError
from preheat.lifeline import end_with_parent
from preheat.limits import MAX_RECORD_BYTES, decode_json, read_limited
from preheat.manifest import MAX_MANIFEST_BYTES
from preheat.remote_build import ANSWER_FORMAT, ANSWER_NAME, BUNDLE_NAME, REQUEST_NAME
from preheat.store import DiskStore
from preheat.store.signing import UNSIGNED
from preheat.version import VERSION
from preheatd.config import Config, Target
from preheatd.executors.messages import Answer, Request
from preheatd.inventory import Inventory
from preheatd.kinds import kind_of
from preheatd.outcome import BuildRequest
from preheatd.project import Project
from preheatd.state import Failure, State

if TYPE_CHECKING:
    from preheat.manifest import Ref
    from preheatd.outcome import Outcome
    from preheatd.plan import TargetFacts

_TRIES = 3
_LOG_LINES = 60
_REMOTE_SECONDS = 60.0


async def answer_to(request: Request, directory: Path) -> Answer:
    """Build in ``directory``. Raises ``PreheatError`` for what is not the target's trouble."""
    if request.preheat != VERSION:
        raise ConfigurationError(
            f"This node has preheat {VERSION}, and the one that asks has {request.preheat}.",
            remedy="Install the same version of preheat on both nodes.",
        )
    project = _project(request, directory)
    survey = await project.inventory.survey(project.config)
    facts = survey.of(request.target)
    if not facts.environment:
        return _failed(project, facts.failure)
    if facts.environment != request.environment:
        return _other_environment(project, request, facts)
    outcome = await _built(project, request)
    if outcome.result == "superseded":
        return _answer("superseded", reasons=outcome.reasons)
    if outcome.failure is not None or outcome.manifest is None:
        return _failed(project, outcome.failure)
    (ref,) = project.store.refs(request.target)
    await _hand_over(project.store, ref, request, directory)
    return _answer(
        "built",
        manifest=ref.manifest,
        seconds=round(outcome.seconds, 3),
        log=_log(project, ref.environment),
    )


def _project(request: Request, directory: Path) -> Project:
    root = Path(request.project)
    if not root.is_dir():
        raise ConfigurationError(
            f"The project {root} is not there.",
            remedy="Set `remote_project` of the executor to where the project lies on that node.",
        )
    config = Config(
        file=root / "preheat.toml",
        project=root.resolve(),
        store=directory / "store",
        targets=(_target(request),),
        zygote=False,
    )
    state = State(Path(request.state) if request.state else directory / "state")
    state.prepare()
    state.sweep()
    store = DiskStore(config.store, create=True, signing=UNSIGNED)
    return Project(config, store, state, Inventory(store, state))


def _target(request: Request) -> Target:
    cwd = Path(request.cwd)
    return Target(
        name=request.target,
        factory=request.factory,
        python=request.python or sys.executable,
        cwd=cwd if cwd.is_dir() else Path(request.project),
        env=request.env,
        timeout=request.timeout,
        device="cuda" if request.device == "cuda" else "cpu",
        tolerance=request.tolerance,
        memory_limit=request.memory_limit,
    )


async def _built(project: Project, request: Request) -> Outcome:
    """Once more where the sources moved meanwhile: somebody may be pulling them."""
    (target,) = project.config.targets
    order = BuildRequest(target=target, environment=request.environment, device=request.device)
    for _ in range(_TRIES):
        outcome = await project.build(order, _say)
        if outcome.result != "superseded":
            break
    return outcome


async def _hand_over(store: DiskStore, ref: Ref, request: Request, directory: Path) -> None:
    if request.through is None:
        from preheatd.bundles.exporting import Exporter

        await Exporter(store).to_file((ref,), directory / BUNDLE_NAME)
        return
    from preheatd.remotes.calls import opened
    from preheatd.remotes.pushing import Pusher

    remote = await opened(request.through, _REMOTE_SECONDS)
    await Pusher(remote, store, seconds=_REMOTE_SECONDS).push((ref,))


def _other_environment(project: Project, request: Request, facts: TargetFacts) -> Answer:
    here = project.inventory.environment(facts.environment)
    reasons = differences("environment_differs", request.expected, here) if here else ()
    said = "; ".join(str(reason) for reason in reasons) or "unknown"
    return _answer(
        "failed",
        kind="environment_differs",
        message=f"The node that the executor chose has another environment than its file says: {said}.",
        remedy="Run `preheat environment --json` on such a node, in the way in which jobs run there, and "
        "put its answer into the file that `environment` names; or choose other nodes.",
        reasons=reasons,
    )


def _failed(project: Project, failure: Failure | None) -> Answer:
    if failure is None:
        return _answer("failed", kind="no_result", message="The build brought nothing.")
    return _answer(
        "failed",
        kind=failure.kind,
        message=failure.message,
        remedy=failure.remedy,
        phase=failure.phase,
        refused=failure.refused,
        reasons=failure.reasons,
        log=_log(project, failure.environment),
    )


def _log(project: Project, environment: str) -> str:
    (target,) = project.config.targets
    return project.state.log_tail(target.name, environment, _LOG_LINES)


def _answer(outcome: str, **fields: object) -> Answer:
    return msgspec.convert(
        {"format": ANSWER_FORMAT, "outcome": outcome, "host": socket.gethostname(), **fields},
        Answer,
    )


def _say(what: object) -> None:
    """For whoever reads the log of the executor's worker."""
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def main(argv: list[str]) -> int:
    """Answer the request in a directory. Exit status 0 when an answer was written."""
    directory, parent = Path(argv[1]), int(argv[2])
    end_with_parent()
    if os.getppid() != parent:
        return 1
    data = read_limited(directory / REQUEST_NAME, MAX_MANIFEST_BYTES)
    began = time.monotonic()
    try:
        request = decode_json(data, Request, MAX_MANIFEST_BYTES)
        answer = asyncio.run(answer_to(request, directory))
    except msgspec.MsgspecError as error:
        answer = _answer(
            "failed", kind="request", message=f"The request is not understood: {error}."
        )
    except PreheatError as error:
        answer = _answer("failed", kind=kind_of(error), message=error.message, remedy=error.remedy)
    _say(f"{answer.outcome} after {time.monotonic() - began:.1f} s")
    encoded = msgspec.json.encode(answer)
    if len(encoded) > MAX_RECORD_BYTES // 2:  # a very long list of reasons
        encoded = msgspec.json.encode(msgspec.structs.replace(answer, reasons=(), log=""))
    (directory / ANSWER_NAME).write_bytes(encoded)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
