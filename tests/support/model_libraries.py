"""Imports the libraries of models and the models that the cases use, for processes that fork."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

import torch  # noqa: F401 - the declarations below need it

PROJECT = Path(__file__).parents[1] / "conformance" / "capture"
MODELS = ("bert", "gpt2", "llama", "mixtral", "qwen3", "t5", "vit", "whisper")

# Not imported: a case's module must be imported by the process that records what it imports.
declared = runpy.run_path(str(PROJECT / "cases" / "torchvision_operators.py"))

for library in ("timm", "transformers", "transformers.generation.utils"):
    importlib.import_module(library)
for model in MODELS:
    importlib.import_module(f"transformers.models.{model}.modeling_{model}")
