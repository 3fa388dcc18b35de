"""``preheat reload``: ask a daemon to read its configuration again, and wait for what it says."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError, NoDaemonError, WaitTimeoutError
from preheatd.state import read_record, write_record

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.project import Project
    from preheatd.state import State

_NAME = "reloaded.json"
_POLL_SECONDS = 0.05


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says after it was asked. ``number`` counts the answers of all daemons of a state."""

    pid: int
    number: int
    accepted: bool
    detail: str = ""


def last_answer(state: State) -> Answer | None:
    """The answer that was given last."""
    return read_record(_path(state), Answer)


def give_answer(state: State, *, refused: str) -> None:
    """Say how reading the configuration ended; ``refused`` says why the one from before stays."""
    before = last_answer(state)
    answer = Answer(
        pid=os.getpid(),
        number=before.number + 1 if before else 1,
        accepted=not refused,
        detail=refused,
    )
    write_record(_path(state), answer)


async def reload(project: Project, seconds: float) -> Answer:
    """Ask the daemon of this configuration and wait until it has made a plan.

    Raises ``NoDaemonError`` when there is none or it ends meanwhile, ``WaitTimeoutError`` after
    ``seconds``, and ``ConfigurationError`` when the configuration is refused.
    """
    state, file = project.state, project.config.file
    daemons = await asyncio.to_thread(state.running_daemons, file)
    if not daemons:
        raise NoDaemonError(f"No daemon keeps {file} warm.")
    pid = daemons[0].pid
    before = await asyncio.to_thread(last_answer, state)
    os.kill(pid, signal.SIGHUP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = await asyncio.to_thread(last_answer, state)
        if answer is not None and answer.pid == pid and answer != before:
            if not answer.accepted:
                raise ConfigurationError(answer.detail)
            return answer
        if not await asyncio.to_thread(state.running_daemons, file):
            raise NoDaemonError(f"The daemon that kept {file} warm ended meanwhile.")
        await asyncio.sleep(_POLL_SECONDS)
    raise WaitTimeoutError(f"The daemon {pid} did not answer within {seconds:g} s.")


def _path(state: State) -> Path:
    return state.path / _NAME
