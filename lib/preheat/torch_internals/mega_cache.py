"""Torch's own file of compiled artifacts, as ``torch.compiler.save_cache_artifacts`` writes it."""

from __future__ import annotations


def load_artifacts(data: bytes) -> dict[str, int]:
    """Put the artifacts into this process's cache directories; how many there are of each kind.

    They are data for a compiler that trusts them: some are pickles, which is to say code. Raises whatever
    torch raises for bytes that are no such file; ``ValueError`` where it finds nothing in them.
    """
    import torch

    info = torch.compiler.load_cache_artifacts(data)
    if info is None:
        raise ValueError("torch finds no artifacts in it")
    return {kind: len(keys) for kind, keys in info.artifacts.items()}
