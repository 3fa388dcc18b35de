"""Says where a measurement was made: ``python -m bench_program.machine``. Prints one JSON object."""

import json
import os
import platform
import sys
from pathlib import Path

import torch


def machine() -> dict[str, str | int]:
    """Versions and names; ``gpu`` is empty where there is none."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(machine()) + "\n")
