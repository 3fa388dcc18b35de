"""What the daemon says to build and proof processes, and what they answer.

The job is one JSON file, its path the only command-line argument. Answers are events, one JSON object
a line, on the process's original standard output; whatever user code prints goes to standard error.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from preheat.limits import decode_json
from preheat.manifest import MAX_MANIFEST_BYTES, Manifest, Proof
from preheat.verdict import Reason

PHASES = ("start", "import", "eager", "trace", "kernels", "package", "proof")


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One build, or the proof of its result.

    ``project`` is the absolute project directory. ``staging`` is an absolute path of a disk store of
    its own: the build process publishes the unproven package there, the proof process loads it from
    there. ``environment`` is the digest that the daemon expects the process to find.
    ``variables`` are the target's ``env``, already set in the process's environment.
    ``tolerance`` maps a dtype's name (``float32``) to (relative, absolute). ``forms``: the kinds of forms
    to prove; empty for all of the package's.
    """

    target: str
    factory: str
    project: str
    staging: str
    environment: str
    device: str
    search_path: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    tolerance: dict[str, tuple[float, float]] = {}
    forms: tuple[str, ...] = ()


class PhaseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="phase"):
    """A phase began."""

    phase: str
    detail: str = ""


class FailedEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="failed"):
    """The process gives up. ``kind`` is a stable word; ``refused`` means that it will not get better."""

    kind: str
    message: str
    remedy: str = ""
    refused: bool = False
    reasons: tuple[Reason, ...] = ()


class BuiltEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="built"):
    """The unproven package was published to the staging store."""

    manifest: Manifest


class ProvenEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="proven"):
    """The proof process accepted the staged package, or one form of it: ``without`` says for each other
    form what was wrong with it. ``modules``: for each form that was proven, all modules that the process
    had imported by then, compiled code left out. ``libraries``: those of installed libraries that the
    factory's module imported, in their order."""

    proof: Proof
    without: dict[str, str] = {}
    modules: dict[str, tuple[str, ...]] = {}
    libraries: tuple[str, ...] = ()


class UnfitEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="unfit"):
    """What this forked process did says nothing: a fresh one could do something else."""

    why: str


Event = PhaseEvent | FailedEvent | BuiltEvent | ProvenEvent | UnfitEvent


def encode_event(event: Event) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """Read one line. Raises ``msgspec.MsgspecError`` for anything else."""
    event: Event = decode_json(line, Event, MAX_MANIFEST_BYTES)  # type: ignore[arg-type]
    return event


def read_job(data: bytes) -> Job:
    """Read a job file's bytes. Raises ``msgspec.MsgspecError``."""
    return decode_json(data, Job)


Result = Literal["built", "held", "failed", "skipped"]
JsonObject = dict[str, Any]
