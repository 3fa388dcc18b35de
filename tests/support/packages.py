"""Packages that count as proven, for tests that go back to them."""

from __future__ import annotations

import msgspec

from preheat.manifest import FormProof, Manifest, Proof
from support.manifests import manifest_of


def proven(content: bytes, started_at: str = "", *, forked: bool = False) -> Manifest:
    """The package with this one object, built at ``started_at``."""
    manifest = manifest_of(content)
    proof = FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.0, modules=0)
    return msgspec.structs.replace(
        manifest,
        build=msgspec.structs.replace(manifest.build, started_at=started_at),
        proof=Proof(forms=(proof,), examples=1, against="eager", seconds=0.0, forked=forked),
    )
