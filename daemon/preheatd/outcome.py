"""What became of one build, as data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Manifest
    from preheat.verdict import Reason
    from preheatd.config import Target
    from preheatd.state import Failure

Result = Literal["built", "held", "failed", "superseded", "confirmed", "withdrawn"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build: a target for the environment that its interpreter answered with.

    ``rebuild``: also where an earlier package fits. ``sources``: the files that were looked at when it was
    asked for, each with its digest.
    """

    target: Target
    environment: str
    device: str
    rebuild: bool = False
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a build ended.

    ``built``: ``manifest`` was published. ``held``: another process builds the same. ``failed``:
    ``failure`` says how. ``superseded``: the sources changed meanwhile, as ``reasons`` say; nothing
    was published. ``confirmed``: a really fresh proof of the published package succeeded; ``withdrawn``: it
    did not, for what ``failure`` says, and the package was taken back. ``returned``: what was published is a
    package of an earlier build, whose sources are those on disk again. ``processes``: of ``seconds``, how
    long the processes of each stage ran.
    """

    target: str
    environment: str
    result: Result
    seconds: float = 0.0
    processes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    manifest: Manifest | None = None
    failure: Failure | None = None
    reasons: tuple[Reason, ...] = ()
    holder: str = ""
    returned: bool = False
