"""When the processes of a build are forked from a zygote, and what a forked proof is worth."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from preheat.compiler_variables import cpp_compilers
from preheatd.probe import Question, file_mark, question_key
from preheatd.zygotes import Root

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from preheat.forking import Kind
    from preheat.job import ProvenEvent
    from preheatd.outcome import BuildRequest
    from preheatd.process import Command, ListenedTo, Start
    from preheatd.state import FreshProof, State
    from preheatd.zygotes import Zygote, Zygotes

# A child that hangs is ended after this many times what fresh processes took, and some more.
_TIMES_FRESH = 2.0
_LEAST_SECONDS = 60.0

# The form without a compiler is proven where there is none, as in a worker.
KIND_OF_FORM: Mapping[str, Kind] = {"lean": "worker", "dynamo": "compiler"}
_MODULES: Mapping[str, Literal["preheat.build", "preheat.verify"]] = {
    "build": "preheat.build",
    "proof": "preheat.verify",
}


class Stalled(Exception):
    """A forked process did not end in time."""


@dataclasses.dataclass(frozen=True)
class Fork:
    """A zygote that suits a build, and the really fresh proof that its proof is compared with."""

    zygote: Zygote
    fresh: FreshProof

    def start(self, stage: str, kind: Kind, job: Path, caches: Mapping[str, str]) -> Start:
        """How to start a process of this build; the caller's command is not looked at otherwise."""

        async def start(command: Command) -> ListenedTo:
            return await self.zygote.fork(kind, _MODULES[stage], str(job), caches)

        return start

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Raises ``Stalled`` when the block takes much longer than fresh processes did."""
        limit = _LEAST_SECONDS + _TIMES_FRESH * self.fresh.seconds
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            self.zygote.give_up("a child hung")
            raise Stalled(f"nothing came of it within {limit:.0f} s") from None

    async def why_not_proven(self, kind: Kind, form: str, proven: ProvenEvent) -> str:
        """Why a forked proof of a form does not suffice; empty when it does.

        It imported the same modules as the last really fresh proof. What the zygote had imported itself
        cannot be told, therefore a really fresh proof follows.
        """
        if proven.without:
            return "; ".join(proven.without.values())
        had = await self.zygote.modules(kind)
        other = other_modules(proven.modules.get(form), self.fresh.modules.get(form), had)
        return f"it imported other modules than in a fresh process: {other}" if other else ""


def other_modules(
    child: tuple[str, ...] | None, fresh: tuple[str, ...] | None, zygote: frozenset[str]
) -> str:
    """Modules that one of both imported and the other one did not; empty when there are none."""
    if child is None or fresh is None:
        return "there is nothing to compare with"
    return ", ".join(sorted((set(child) ^ set(fresh)) - zygote)[:5])


@dataclasses.dataclass(frozen=True)
class Forks:
    """Finds the zygote for a build; None everywhere when zygotes are switched off."""

    zygotes: Zygotes
    state: State

    async def find(
        self, request: BuildRequest, variables: Mapping[str, str], environment: Mapping[str, str]
    ) -> Fork | None:
        """A zygote, started if need be; None where only fresh processes will do.

        ``variables``: those of the target; ``environment``: the same with the compiler's caches.
        """
        if request.device == "cuda":
            return None  # importing the compiler opens the GPU, and that cannot be forked
        name, digest = request.target.name, request.environment
        fresh = await asyncio.to_thread(self.state.fresh_proof, name, digest)
        if fresh is None:
            return None
        root = await asyncio.to_thread(_root, request, variables, environment, fresh.libraries)
        zygote = await self.zygotes.get(root)
        return None if zygote is None else Fork(zygote, fresh)


def _root(
    request: BuildRequest,
    variables: Mapping[str, str],
    environment: Mapping[str, str],
    libraries: tuple[str, ...],
) -> Root:
    target = request.target
    question = Question(target.python, target.cwd, tuple(sorted(variables.items())))
    found = (shutil.which(name, path=variables.get("PATH")) for name in cpp_compilers(variables))
    compilers = (file_mark(Path(path)) for path in found if path)
    return Root(
        python=target.python,
        cwd=target.cwd,
        variables=tuple(sorted(environment.items())),
        stamp="|".join((question_key(question), *compilers)),
        libraries=libraries,
    )
