"""Importing the compiler."""

from __future__ import annotations


def import_compiler() -> None:
    """Import torch and its compiler, so that no user module can stand in for a library of theirs."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401
