"""One measured process: ``python -m bench_program.measure JOB``, JOB in JSON. Prints one JSON object.

What is timed begins after ``import torch`` and after the program and its arguments were made, for every
way alike.
"""

import json
import sys
import time

BEGAN = time.perf_counter()
import torch  # noqa: E402  its import is measured

TORCH_SECONDS = time.perf_counter() - BEGAN

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

WARM_UP_SECONDS = 0.3
MOST_BATCHES = 5000


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one way. ``job``: way, target and form of preheat's, steady_seconds, artifacts, save."""
    from . import case
    from .models import Regional, build

    module, args = build(case.PROGRAM, case.DEVICE, case.LAYERS)
    if job["target"] == "regional":
        module = Regional(module)
    gpu = case.DEVICE == "cuda"
    synchronize = torch.cuda.synchronize if gpu else _nothing
    if gpu:
        _make_ready()
    if case.WARM_LIBRARIES:
        with torch.no_grad():
            module(*args)
    synchronize()
    before = frozenset(sys.modules)
    began, cpu_began = time.perf_counter(), time.process_time()
    preheat_load: Any = None
    if job["form"]:
        from preheat import load

        preheat_load = load
    imported = time.perf_counter()
    call = _prepared(job, module, preheat_load)
    loaded = time.perf_counter()
    added_by_load = frozenset(sys.modules) - before
    with torch.no_grad():
        called = time.perf_counter()
        output = call(*args)
        synchronize()
        done, cpu_done = time.perf_counter(), time.process_time()
        added = frozenset(sys.modules) - before
        peak = _peak_bytes()
        if job["save"]:
            _save(job["artifacts"])
        steady = _steady(call, args, job["steady_seconds"], synchronize, 20 if gpu else 1)
        error = _difference(output, module(*args))
    return {
        "import_torch_seconds": TORCH_SECONDS,
        "import_seconds": imported - began,
        "load_seconds": loaded - imported,
        "first_call_seconds": done - called,
        "ready_seconds": (loaded - began) + (done - called),
        "ready_cpu_seconds": cpu_done - cpu_began,
        "steady_seconds": steady,
        "peak_bytes": peak,
        "modules_load": len(added_by_load),
        "modules": len(added),
        "max_error": error,
        **_what_ran(job, call),
    }


def _nothing() -> None:
    pass


def _make_ready() -> None:
    """Let CUDA's libraries start: about 0.15 s that every way needs alike, eager calls too."""
    for dtype in (torch.float32, torch.float16):
        x = torch.ones(1, 2, 16, 16, device="cuda", dtype=dtype)
        torch.nn.functional.linear(x, x[0, 0], x[0, 0, 0])
        torch.nn.functional.scaled_dot_product_attention(x, x, x)


def _prepared(job: dict[str, Any], module: Any, preheat_load: Any) -> Any:
    if preheat_load is not None:
        return preheat_load(job["target"], module, form=job["form"], on_miss="error")
    if job["way"] == "eager":
        return module
    if job["way"] == "mega" and not job["save"]:
        torch.compiler.load_cache_artifacts(Path(job["artifacts"]).read_bytes())
    return torch.compile(module)


def _save(artifacts: str | None) -> None:
    saved = torch.compiler.save_cache_artifacts()
    if artifacts is not None:
        assert saved is not None, "torch saved no cache artifacts"
        Path(artifacts).write_bytes(saved[0])


def _steady(call: Any, args: Any, seconds: float, synchronize: Any, batch: int) -> float | None:
    """The median time of a call, over batches that each end with a synchronization."""
    if not seconds:
        return None
    times: list[float] = []
    until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < until:
        call(*args)
    synchronize()
    until = time.perf_counter() + seconds
    while len(times) < MOST_BATCHES and (time.perf_counter() < until or len(times) < 5):
        began = time.perf_counter()
        for _ in range(batch):
            call(*args)
        synchronize()
        times.append((time.perf_counter() - began) / batch)
    return sorted(times)[len(times) // 2]


def _peak_bytes() -> int:
    """The most memory of this process so far; ``getrusage`` would count the parent's as well."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _difference(output: Any, wanted: Any) -> float:
    a, b = (x if isinstance(x, torch.Tensor) else x[0] for x in (output, wanted))
    return float((a.float() - b.float()).abs().max())


def _what_ran(job: dict[str, Any], call: Any) -> dict[str, Any]:
    """What was loaded, and how many graphs this process compiled by itself."""
    from preheat.torch_internals.counters import graphs_compiled

    compiled = graphs_compiled()
    if not job["form"]:
        return {"form": job["way"], "compiled": compiled, "misses": 0, "image": None}
    report = call.preheat
    image = _image(report.manifest) if report.form == "lean" else None
    return {
        "form": report.form,
        "compiled": compiled + report.frames_compiled,
        "misses": report.misses,
        "image": image,
    }


def _image(digest: str) -> dict[str, int]:
    """How large the loaded image is."""
    from preheat.image.reading import read_image
    from preheat.store import DiskStore, find_store

    store = DiskStore(find_store(None))
    form = store.read_manifest(digest).form("lean")
    assert form is not None
    objects = {one.name: one for one in form.objects}

    class Opener:
        def names(self) -> tuple[str, ...]:
            return tuple(objects)

        def open(self, name: str) -> Any:
            return store.open_object(objects[name])

    image = read_image(Opener())
    return {
        "graphs": len(image.graphs),
        "kernels": sum(len(graph.kernels) for graph in image.graphs),
        "bytes": sum(one.size for one in form.objects),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
