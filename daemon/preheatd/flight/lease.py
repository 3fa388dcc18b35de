"""The build lease: what a node that builds writes into the shared store, so that others need not.

It is a hint. Two nodes that both believe to hold one build the same thing twice, which is wasteful and
never wrong. No two clocks are compared: the holder writes the lease again and again with a higher number
of renewals, and whoever waits judges by whether the content still changes, on a clock of its own.

A lease is named by what it is to follow, the package that the ref names while it is taken, and by a *term*:
0 for the first holder, 1 for whoever takes over from that one, and so on. Nobody overwrites the lease of
another, so where a file can be created exclusively each term has one holder.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec

from preheat.limits import decode_json
from preheat.store.locks import Holder

if TYPE_CHECKING:
    from preheat.manifest import Digest

FORMAT = 1
MAX_LEASE_BYTES = 16 * 1024
MAX_MESSAGE_CHARACTERS = 1000
# Whatever a lease says, nobody waits longer than that for a sign of life.
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 3600.0
NOBODY = Holder(host="another node", pid=0)

LeaseState = Literal["building", "published", "failed", "abandoned"]


class BuildLease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node's word about one build. ``token`` is random and says whose it is.

    ``base``: the manifest that was the current one, None where there was none. ``length`` in seconds: a
    holder that renews nothing for so long is gone. ``sources``: a digest of the sources that are built.
    ``manifest``: what was published. ``message``: why it failed; ``refused``: it would fail on any node.
    ``started_at`` is for people.
    """

    format: int = FORMAT
    target: str
    environment: str
    base: str | None = None
    term: int = 0
    holder: Holder = NOBODY
    token: str = ""
    renewals: int = 0
    length: float = LONGEST_SECONDS
    state: LeaseState = "building"
    sources: str = ""
    manifest: str | None = None
    message: str = ""
    refused: bool = False
    started_at: str = ""

    @property
    def patience(self) -> float:
        """How long it may stay as it is before its holder counts as gone, in seconds."""
        if not self.length >= SHORTEST_SECONDS:  # not a number, either
            return SHORTEST_SECONDS
        return min(self.length, LONGEST_SECONDS)

    def who(self) -> str:
        """The holder, in words."""
        if not self.holder.pid:
            return self.holder.host
        return f"process {self.holder.pid} on {self.holder.host}"


def lease_name(base: Digest | None, term: int) -> str:
    """The name of a lease among those of its target and environment."""
    return f"{base or 'first'}.{term}"


def encode_lease(lease: BuildLease) -> bytes:
    return msgspec.json.encode(lease)


def decode_lease(data: bytes, expected: BuildLease) -> BuildLease:
    """What is written there, of the target, environment, base and term of ``expected``.

    Anything else, damaged or of a later version, is the lease of a holder of whom nothing is known, and who
    lives for as long as it changes: its token is made of its bytes.
    """
    try:
        lease = decode_json(data, BuildLease, MAX_LEASE_BYTES)
    except msgspec.MsgspecError:
        return unknown_lease(expected, data)
    same = (lease.format, lease.target, lease.environment, lease.base, lease.term) == (
        FORMAT,
        expected.target,
        expected.environment,
        expected.base,
        expected.term,
    )
    return lease if same and lease.token else unknown_lease(expected, data)


def unknown_lease(expected: BuildLease, data: bytes = b"") -> BuildLease:
    """The lease of somebody of whom nothing can be read."""
    return msgspec.structs.replace(
        expected,
        holder=NOBODY,
        token=f"unknown {hashlib.sha256(data).hexdigest()[:16]}",
        renewals=0,
        state="building",
    )
