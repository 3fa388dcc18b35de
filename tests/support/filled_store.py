"""A store on a file system that has run full, in a process of its own: ``python -m support.filled_store``.

Arguments: the store's directory, then how many packages to try. The last line of standard output is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from preheat.errors import StoreError
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT, manifest_of


def whole(root: Path, content: bytes) -> bool:
    """Whether the package is there, with this content."""
    package = DiskStore(root).read_package("model", ENVIRONMENT)
    if package is None:
        return False
    with_one = DiskStore(root).open_object(package[1].objects()[0])
    same = with_one.read() == content
    with_one.close()
    return same


def main(directory: str, count: str) -> None:
    """Publish until it fails, look, make room, and publish again."""
    root = Path(directory)
    store = DiskStore(root, create=True)
    last = b"first"
    store.put_object(last)
    store.publish(manifest_of(last))
    failure: StoreError | None = None
    for number in range(int(count)):
        content = f"{number} ".encode() * 20_000
        try:
            store.put_object(content)
            store.publish(manifest_of(content))
        except StoreError as error:
            failure = error
            break
        last = content
    before = whole(root, last)
    left = [path.name for path in store.layout.temporary.iterdir()]
    for digest in list(store.object_digests()):  # as a collection would, without one
        if digest not in needed(store):
            store.layout.object(digest).unlink()
    filler = root.parent / "filler"
    filler.unlink(missing_ok=True)
    new = b"after that"
    store.put_object(new)
    store.publish(manifest_of(new))
    said = {
        "failure": failure.message if failure else None,
        "remedy": failure.remedy if failure else None,
        "whole": before,
        "left": left,
        "again": whole(root, new),
    }
    sys.stdout.write(json.dumps(said) + "\n")


def needed(store: DiskStore) -> set[str]:
    """What refs name."""
    found = set()
    for ref in store.refs():
        found.add(ref.manifest)
        found |= {one.sha256 for one in store.read_manifest(ref.manifest).objects()}
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
