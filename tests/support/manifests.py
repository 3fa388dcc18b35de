"""Manifests for tests of the store, with nothing in them that does not matter there."""

from __future__ import annotations

import msgspec

from preheat.formats import FORMATS
from preheat.manifest import (
    Form,
    Manifest,
    ObjectRef,
    decode_manifest,
    environment_digest,
    sha256,
)

SAMPLE = b"""{"format": 3, "target": "model", "factory": "app:model", "environment": {"python": "3.11",
"abi": "cp311", "platform": "linux", "torch": "2.13", "torch_git": "", "triton": null, "cuda": null,
"driver": null, "device": "cpu", "gpus": [], "cpu_isa": "avx2", "cpu_count": 2, "variables": {}},
"settings": {"threads": 1, "default_dtype": "float32", "matmul_precision": "highest",
"configuration": {}}, "spec": {"grad": false, "backward": false, "mode": null, "dynamic": null,
"fullgraph": false, "backend": "inductor", "options": {}, "examples": 1}, "sources": {}, "live": [],
"forms": [], "build": {"preheat": "0", "started_at": "", "seconds": {}, "graphs": 1, "kernels": 1}}"""


def manifest_of(*contents: bytes, target: str = "model") -> Manifest:
    """A manifest that names these contents as its objects."""
    objects = tuple(
        ObjectRef(name=f"part{number}", sha256=sha256(content), size=len(content))
        for number, content in enumerate(contents)
    )
    return msgspec.structs.replace(
        decode_manifest(SAMPLE),
        target=target,
        forms=(Form(kind="dynamo", format=FORMATS["dynamo"], objects=objects),),
    )


ENVIRONMENT = environment_digest(decode_manifest(SAMPLE).environment)
