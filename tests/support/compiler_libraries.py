"""Imports the compiler and prepares it, for processes that fork."""

from __future__ import annotations

import preheat.build
import preheat.recording  # noqa: F401
from preheat.torch_internals.compiler import prepare_compiler

prepare_compiler()
