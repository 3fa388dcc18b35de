"""Commands of the user's that run when a target has become fresh or has failed.

They are argument lists and never go through a shell. Nothing depends on them: one that fails, hangs or
cannot be started is an event, and the daemon goes on.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING

from preheatd import events
from preheatd.logs import BoundedLog
from preheatd.process import Command, describe_status, run_process
from preheatd.surroundings import target_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preheatd.config import Config, Target
    from preheatd.outcome import Outcome
    from preheatd.state import State

LIMIT_SECONDS = 60.0


class Hooks:
    """Runs hooks beside everything else; those of one target one after another."""

    def __init__(
        self, emit: events.Emit, state: State, *, limit_seconds: float = LIMIT_SECONDS
    ) -> None:
        self._emit = emit
        self._state = state
        self._limit_seconds = limit_seconds
        self._turns: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, outcome: Outcome, config: Config, environ: Mapping[str, str]) -> None:
        """Start what the configuration wants after this outcome, if anything."""
        target = next((one for one in config.targets if one.name == outcome.target), None)
        arguments = arguments_for(outcome, target)
        if target is None or not arguments:
            return
        variables = {**target_environment(environ, target, config.project), **told(outcome, config)}
        command = Command(arguments=arguments, cwd=config.project, environment=variables)
        task = asyncio.create_task(self._run(target.name, command), name=f"hook of {target.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, target: str, command: Command) -> None:
        async with self._turns[target], BoundedLog(self._log(target)) as log:
            # Not its arguments: an address with a password in it is nobody's business.
            words = command.arguments[0]
            try:
                async with asyncio.timeout(self._limit_seconds):
                    status = await run_process(command, log, lambda event: None)
            except TimeoutError:
                self._failed(target, f"`{words}` was ended after {self._limit_seconds:g} s.")
            except (OSError, ValueError) as error:
                self._failed(target, f"`{words}` cannot be started: {error}.")
            else:
                if status:
                    detail = f"`{words}` {describe_status(status)}; it said: {self._log(target)}"
                    self._failed(target, detail)

    def _failed(self, target: str, detail: str) -> None:
        self._emit(events.Event(action=events.HOOK_FAILED, target=target, detail=detail))

    def _log(self, target: str) -> Path:
        return self._state.path / "logs" / f"{target}.hook.log"


def arguments_for(outcome: Outcome, target: Target | None) -> tuple[str, ...]:
    """The command for an outcome; empty where there is none. Pure."""
    if target is None:
        return ()
    if outcome.result == "built":
        return target.on_fresh
    return target.on_failed if outcome.result in ("failed", "withdrawn") else ()


def told(outcome: Outcome, config: Config) -> dict[str, str]:
    """What a hook learns, as environment variables. Pure."""
    return {
        "PREHEAT_TARGET": outcome.target,
        "PREHEAT_RESULT": "fresh" if outcome.result == "built" else "failed",
        "PREHEAT_SECONDS": f"{outcome.seconds:.1f}",
        "PREHEAT_MESSAGE": outcome.failure.message if outcome.failure else "",
        "PREHEAT_CONFIGURATION": str(config.file),
        "PREHEAT_STORE": str(config.store),
    }
