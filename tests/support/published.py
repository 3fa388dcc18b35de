"""Projects whose packages are published without a build, for what only looks at them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

import test_daemon_double as double

from preheat.manifest import ModuleSource, ObjectRef, Sources, sha256
from preheat.sources.digest import module_digest
from preheat.store import DiskStore


def publish(file: Path, store: DiskStore, name: str, *, word: str = "one") -> None:
    """A proven package of one target of ``double.make_project``, of its sources as they are now."""
    text = (file.parent / "app" / f"{name}.py").read_bytes()
    digest, size = store.put_object(f"compiled {name} {word}".encode())
    module = ModuleSource(
        module=f"app.{name}",
        root=0,
        path=f"app/{name}.py",
        file_sha256=sha256(text),
        digest=module_digest(text),
    )
    made = double.manifest(
        name,
        f"app.{name}:{name}",
        sources=Sources(modules=(module,)),
        objects=(ObjectRef(name="code", sha256=digest, size=size),),
        proof=double.PROOF,
        word=word,
    )
    store.publish(made)


def project(directory: Path, *names: str, extra: str = "") -> Path:
    """A project with a published package of every target; its configuration file."""
    file = double.make_project(directory / "project", names, extra=extra)
    store = DiskStore(directory / "store", create=True)
    for name in names:
        publish(file, store, name)
    return file
