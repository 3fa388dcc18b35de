"""The seed process: ``python -m preheat.seed FILE``.

Puts the artifacts of one file, which ``torch.compiler.save_cache_artifacts`` wrote, into the compiler caches
that this process's environment variables name. Builds find them there. Answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from preheat.lifeline import live_with_parent


def main(argv: list[str]) -> int:
    """Load one file. Exit status 0 when its artifacts are in the caches."""
    live_with_parent(1)
    answer = os.dup(1)
    os.dup2(2, 1)
    said: dict[str, object]
    try:
        from preheat.torch_internals.compiler import import_compiler
        from preheat.torch_internals.mega_cache import load_artifacts

        import_compiler()
        said = {"artifacts": load_artifacts(Path(argv[1]).read_bytes())}
    except Exception as error:
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}"[:1000]}
    with os.fdopen(answer, "wb") as stream:
        stream.write(json.dumps(said).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
