"""Where things are in a store: pure path names, no file-system access.

::

    FORMAT                                  which layout this is
    CACHEDIR.TAG                            tells backup programs to leave the store out
    v1/objects/ab/<sha256>                  immutable, 0444, named by content; manifests too
    v1/refs/<target>/<environment>.json     the only mutable name
    v1/signatures/ab/<sha256>.json          signatures of a manifest, where there are any
    v1/build-leases/<target>/<environment>  in a remote: which node builds; see preheatd/flight
    v1/tmp  v1/locks  v1/quarantine
    state/                                  0700, the daemon's own
"""

from __future__ import annotations

import functools
import hashlib
import re
import string
from pathlib import Path

import msgspec

from preheat.errors import CorruptedError

FORMAT_TEXT = b"preheat store 1\n"
MAX_FORMAT_BYTES = 256
CACHEDIR_TAG_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This directory holds compiled programs that preheat can build again.\n"
)
OWN_NAMES = frozenset({"FORMAT", "CACHEDIR.TAG", "v1", "state"})

# Two encoded names, a separator and a suffix must fit into the 255 bytes of a file name.
NAME_LIMIT = 110
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
_ANY_FORMAT = re.compile(rb"preheat store [0-9]+\n")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@functools.lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """A safe file name for any string: at most ``NAME_LIMIT`` of ``[A-Za-z0-9._%~-]``, no leading dot.

    Different strings get different names (a sha256 stands in for the tail of long ones). Not
    promised: decoding, which nothing needs because a ref holds the real name; and difference on
    file systems that fold case.
    """
    # "%" alone and "~" never come out of the escaping, so neither form can meet an escaped name.
    if not name:
        return "%"
    data = name.encode("utf-8", "surrogatepass")
    plain = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data)
    if plain.startswith("."):
        plain = "%2E" + plain[1:]
    if len(plain) <= NAME_LIMIT:
        return plain
    digest = hashlib.sha256(data).hexdigest()
    return f"{plain[: NAME_LIMIT - len(digest) - 1]}~{digest}"


def is_damaged_format(text: bytes) -> bool:
    """Whether these bytes of FORMAT are none that any version of preheat writes there."""
    return _ANY_FORMAT.fullmatch(text) is None


def is_digest(text: str) -> bool:
    """Whether ``text`` is a sha256 in 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The paths below one root. Those that are asked for again and again are made once."""

    root: Path

    @property
    def format_file(self) -> Path:
        return self.root / "FORMAT"

    @property
    def cachedir_tag(self) -> Path:
        return self.root / "CACHEDIR.TAG"

    @functools.cached_property
    def version(self) -> Path:
        return self.root / "v1"

    @functools.cached_property
    def objects(self) -> Path:
        return self.version / "objects"

    @functools.cached_property
    def refs(self) -> Path:
        return self.version / "refs"

    @functools.cached_property
    def temporary(self) -> Path:
        return self.version / "tmp"

    @functools.cached_property
    def locks(self) -> Path:
        return self.version / "locks"

    @functools.cached_property
    def quarantine(self) -> Path:
        return self.version / "quarantine"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def directories(self) -> tuple[Path, ...]:
        """Those that every store has, parents first; ``state`` is not among them."""
        inner = (self.objects, self.refs, self.temporary, self.locks, self.quarantine)
        return (self.version, *inner)

    def object(self, digest: str) -> Path:
        """Raises ``CorruptedError`` for anything but a digest: a manifest must not choose a path."""
        if not is_digest(digest):
            raise CorruptedError(f"{self.root}: {digest!r} is not the name of an object.")
        return self.objects / digest[:2] / digest

    @property
    def all_signatures(self) -> Path:
        """Where signatures are; only a store in which something was signed has it."""
        return self.version / "signatures"

    def signatures(self, digest: str) -> Path:
        """The signatures of a manifest. Raises as ``object``."""
        return self.all_signatures / digest[:2] / f"{self.object(digest).name}.json"

    @property
    def build_leases(self) -> Path:
        """Where nodes say what they build; only a remote that several nodes warm from has it."""
        return self.version / "build-leases"

    def build_lease(self, target: str, environment: str, name: str) -> Path:
        directory = self.build_leases / encode_name(target) / encode_name(environment)
        return directory / f"{encode_name(name)}.json"

    def target(self, target: str) -> Path:
        return self.refs / encode_name(target)

    def ref(self, target: str, environment: str) -> Path:
        return self.target(target) / f"{encode_name(environment)}.json"

    def lock(self, target: str, environment: str) -> Path:
        return self.locks / f"{encode_name(target)}@{encode_name(environment)}.lock"

    @property
    def collector_lock(self) -> Path:
        """Held by the one collector. Locks of builds have an ``@`` in their names."""
        return self.locks / "collector.lock"

    @functools.cached_property
    def turns_lock(self) -> Path:
        """Where writers and the collector take turns."""
        return self.locks / "turns.lock"

    def lock_holder(self, target: str, environment: str) -> Path:
        """Beside the lock, for people: who holds it."""
        return self.lock(target, environment).with_suffix(".holder")
