"""Carrying a package's objects from one store to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.errors import CorruptedError

if TYPE_CHECKING:
    from preheat.manifest import Manifest
    from preheat.store.protocol import Store


def copy_package(source: Store, destination: Store, manifest: Manifest) -> None:
    """Put every object that ``manifest`` names into ``destination``; each is verified on the way.

    Does not publish: the manifest is the caller's to publish when all is there. When it raises
    (``CorruptedError`` or another ``StoreError``), some objects may be there already; that is harmless,
    and calling it again goes on from there.
    """
    for ref in manifest.objects():
        opened = source.open_object(ref)
        try:
            arrived = destination.put_object(opened.read())
        finally:
            opened.close()
        if arrived != (ref.sha256, ref.size):
            raise CorruptedError(f"{ref.name} changed on its way to {destination.location}.")
