"""Keeping the text of what a build executed, so that an edit can be shown next to it later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.manifest import Digest, Sources

MAX_FILE_BYTES = 1024 * 1024
MAX_PACKAGE_BYTES = 32 * 1024 * 1024


def keep_texts(
    sources: Sources,
    texts: Mapping[Digest, bytes],
    put_object: Callable[[bytes], tuple[Digest, int]],
) -> Sources:
    """The snapshot, with the text of each module in an object that is named by its digest.

    Left out are files over 1 MiB, which are generated, and what goes beyond 32 MiB a package. Nothing
    but explanations depends on these objects.
    """
    kept: dict[Digest, int] = {}
    left = MAX_PACKAGE_BYTES
    for module in sources.modules:
        text = texts.get(module.file_sha256)
        if text is None or module.file_sha256 in kept or len(text) > min(MAX_FILE_BYTES, left):
            continue
        digest, size = put_object(text)
        kept[digest] = size
        left -= size
    modules = tuple(
        msgspec.structs.replace(module, kept=kept.get(module.file_sha256))
        for module in sources.modules
    )
    return msgspec.structs.replace(sources, modules=modules)
