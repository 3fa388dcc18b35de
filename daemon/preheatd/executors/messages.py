"""What goes to another node and what comes back: JSON that both sides check before they believe it."""

from __future__ import annotations

from typing import Literal

import msgspec

from preheat.limits import MAX_RECORD_BYTES, decode_json
from preheat.manifest import Digest, Environment
from preheat.remote_build import ANSWER_FORMAT
from preheat.verdict import Reason
from preheat.version import VERSION

Outcome = Literal["built", "failed", "superseded"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One build. ``environment`` is the digest of ``expected``, for which the package must be.

    Paths are those of the other node. ``through``: the store to push to; None: the bundle comes with the
    answer.
    """

    format: int = ANSWER_FORMAT
    preheat: str = VERSION
    target: str
    factory: str
    project: str
    cwd: str
    python: str | None
    state: str | None
    env: dict[str, str]
    device: str
    timeout: float
    tolerance: dict[str, tuple[float, float]]
    memory_limit: int | None
    environment: Digest
    expected: Environment
    through: str | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it. ``manifest``: the package's, by digest. ``log``: the end of the log there."""

    format: int
    outcome: Outcome
    host: str = ""
    manifest: Digest = ""
    kind: str = ""
    message: str = ""
    remedy: str = ""
    phase: str = ""
    refused: bool = False
    reasons: tuple[Reason, ...] = ()
    seconds: float = 0.0
    log: str = ""


def read_answer(data: bytes) -> Answer:
    """Raises ``msgspec.MsgspecError`` for what is no answer that this version knows."""
    answer = decode_json(data, Answer, MAX_RECORD_BYTES)
    if answer.format != ANSWER_FORMAT:
        raise msgspec.ValidationError(f"it has format {answer.format}, not {ANSWER_FORMAT}")
    return answer
