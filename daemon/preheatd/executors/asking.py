"""The environments of all lines of a configuration: interpreters are asked, files are read.

What an executor builds for stands in a file, because no interpreter here could tell: it is what ``preheat
environment --json`` printed on such a node.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheat.manifest import environment_digest
from preheatd.probe import ProbeAnswer, ProbeError, file_mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from preheatd.config import Target
    from preheatd.hitting import WrittenEnvironments
    from preheatd.inventory import Asking

_REMEDY = "Write it with `preheat environment --json` on a node of that kind."


@dataclasses.dataclass
class Everywhere:
    """Asks ``here`` about targets that are built on this machine, and files about the others."""

    here: Asking
    _read: dict[Path, tuple[str, WrittenEnvironments | ProbeError]] = dataclasses.field(
        default_factory=dict
    )

    async def environments(
        self, targets: Iterable[Target], project: Path, environ: Mapping[str, str]
    ) -> dict[str, ProbeAnswer | ProbeError]:
        """The answer, or what is wrong, for each target by name."""
        import asyncio  # here: who asks for what is written only needs none of it

        targets = tuple(targets)
        local = [target for target in targets if target.executor is None]
        found = await self.here.environments(local, project, environ) if local else {}
        if len(local) == len(targets):
            return found
        return {**found, **await asyncio.to_thread(self.written, targets)}

    def forget(self) -> None:
        """Ask and read again the next time."""
        self.here.forget()
        self._read.clear()

    def written(self, targets: Iterable[Target]) -> dict[str, ProbeAnswer | ProbeError]:
        """What files say about those of the targets that are built elsewhere. Reads files."""
        return {target.name: self._of(target) for target in targets if target.executor is not None}

    def _of(self, target: Target) -> ProbeAnswer | ProbeError:
        assert target.executor is not None
        path = target.executor.environment
        written = self._file(path)
        if isinstance(written, ProbeError):
            return written
        return written.answer(target.name, str(path), _REMEDY)

    def _file(self, path: Path) -> WrittenEnvironments | ProbeError:
        mark = file_mark(path)
        known = self._read.get(path)
        if known is None or known[0] != mark:
            known = self._read[path] = (mark, _read(path))
        return known[1]


def _read(path: Path) -> WrittenEnvironments | ProbeError:
    from preheatd.hitting import read_written

    try:
        written = read_written(path)
    except PreheatError as error:
        return ProbeError(error.message, remedy=error.remedy or _REMEDY)
    for answer in written.answers:
        for device, environment in (("cpu", answer.cpu), ("cuda", answer.cuda)):
            digest = answer.digests.get(device)
            if environment is not None and digest != environment_digest(environment):
                return ProbeError(
                    f"{path}: the digest of its environment on `{device}` is not that of its fields.",
                    remedy=_REMEDY,
                )
    return written
