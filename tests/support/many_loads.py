"""Many processes that load the same constants at once: ``python -m support.many_loads STORE WAY COUNT``.

``WAY`` is ``mapped`` or ``copied``. Prints one JSON line: memory of each process and of all together, in
bytes, as the kernel counts it while all of them are alive, and processor seconds of each load.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from preheat.image.constants import read_constants
from preheat.image.format import ConstantTensor
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT

if TYPE_CHECKING:
    from preheat.manifest import ObjectRef


class _Opener:
    """The only object of the only package."""

    def __init__(self, store: DiskStore, ref: ObjectRef) -> None:
        self._store, self._ref = store, ref

    def names(self) -> tuple[str, ...]:
        return (self._ref.name,)

    def open(self, name: str) -> Any:
        return self._store.open_object(self._ref)


def _load(root: str, way: str) -> tuple[Any, dict[str, float]]:
    store = DiskStore(root, trust="require" if way == "mapped" else "off")
    before, began = time.process_time(), time.monotonic()
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    (ref,) = package[1].objects()
    count = ref.size // 4
    record = ConstantTensor("c", "float32", (count,), (1,), 0, ref.size, "cpu")
    tensor = read_constants(_Opener(store, ref), ref.name, [[record]])[0]["c"]
    total = float(tensor.sum())
    took = {"cpu": time.process_time() - before, "wall": time.monotonic() - began}
    return tensor, {**took, "sum": total}


def _child(root: str, way: str, go: int, out: int, end: int) -> NoReturn:
    os.read(go, 1)
    kept, said = _load(root, way)
    said["switches"] = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    os.write(out, json.dumps(said).encode() + b"\n")
    os.read(end, 1)
    del kept
    os._exit(0)


def _memory(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {"pss": found["Pss"], "rss": found["Rss"], "private": found["Private_Dirty"]}


def main(root: str, way: str, count: str) -> None:
    """Fork, let all go at once, hear all of them, look at their memory, end them."""
    torch.set_num_threads(1)
    go, out, end = os.pipe(), os.pipe(), os.pipe()
    pids = []
    for _ in range(int(count)):
        if (pid := os.fork()) == 0:
            os.close(go[1])
            os.close(end[1])
            _child(root, way, go[0], out[1], end[0])
        pids.append(pid)
    os.close(go[0])
    began = time.monotonic()
    os.close(go[1])
    with os.fdopen(out[0], "rb") as answers:
        said = [json.loads(answers.readline()) for _ in pids]
    wall = time.monotonic() - began
    memory = [_memory(pid) for pid in pids]
    os.close(end[1])
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    answer = {
        "loads": len(said),
        "failed": sum(status != 0 for status in statuses),
        "sums": len({one["sum"] for one in said}),
        "wall": wall,
        "cpu_each": sum(one["cpu"] for one in said) / len(said),
        **{key: sum(one[key] for one in memory) for key in ("pss", "rss", "private")},
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
