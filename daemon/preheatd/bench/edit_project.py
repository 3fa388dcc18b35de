"""The project that is edited: its files, and the texts that its helper takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGE = "bench_edit"
TARGET = "program"

_HEAD = '''"""What is edited."""

import torch


def scaled(y: torch.Tensor) -> torch.Tensor:
    """A part of every program."""
'''
# Ways to write the same: the code differs, and the graph does not.
_BODIES = (
    "    return y * {constant}\n",
    "    scale = {constant}\n    return y * scale\n",
)


def helper_text(edits: int) -> str:
    """The helper after so many edits: of the constant for an odd number, of the code for an even one.

    No text comes twice, because an edit that is undone needs no build.
    """
    constant = 2.0 + (edits + 1) // 2 / 64
    return _HEAD + _BODIES[edits // 2 % 2].format(constant=constant)


def write_project(project: Path, program: str, *, zygote: bool) -> None:
    """Write all files of a project with one target."""
    package = project / PACKAGE
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / "edited", package, ignore=ignore)
    (package / "case.py").write_text(f"PROGRAM = {program!r}\n")
    (package / "helper.py").write_text(helper_text(0))
    write_configuration(project, zygote=zygote)


def write_configuration(project: Path, *, zygote: bool) -> None:
    """Say what is to be kept warm, and whether builds may be forked."""
    (project / "preheat.toml").write_text(
        f'targets = ["{PACKAGE}.warm:{TARGET}"]\nwatch = ["{PACKAGE}"]\ndevice = "cpu"\n'
        f"zygote = {str(zygote).lower()}\n"
    )


def edit(project: Path, text: str) -> None:
    """Save the helper as an editor does: a new file takes the place of the old one."""
    helper = project / PACKAGE / "helper.py"
    new = helper.with_name(".helper.py.new")
    new.write_text(text)
    os.replace(new, helper)  # noqa: PTH105
