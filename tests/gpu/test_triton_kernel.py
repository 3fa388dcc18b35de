"""By hand on a GPU machine: a user's own Triton kernel, and edits of everything that it uses."""

from __future__ import annotations

import pytest

from support.project import Project

pytestmark = pytest.mark.gpu

FILES = {
    "kernels/__init__.py": "",
    "kernels/helpers.py": """
        import triton
        import triton.language as tl

        SHIFT = tl.constexpr(3)


        @triton.jit
        def scaled(x):
            return x * 2 + SHIFT
    """,
    "kernels/model.py": """
        import torch
        import triton
        import triton.language as tl

        from kernels.helpers import scaled


        @triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"])
        @triton.jit
        def kernel(x_pointer, y_pointer, n, BLOCK: tl.constexpr):
            # a comment
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            mask = offsets < n
            tl.store(y_pointer + offsets, scaled(tl.load(x_pointer + offsets, mask)), mask)


        def program(x):
            y = torch.empty_like(x)
            n = x.numel()
            kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
            return y.sin()
    """,
    "kernels/warm.py": """
        import preheat
        import torch

        from kernels.model import program


        @preheat.target
        def triton_program():
            x = torch.linspace(0, 1, 1000, device="cuda")
            return preheat.Spec(program, examples=[(x,)], grad=False)
    """,
    "preheat.toml": 'targets = ["kernels.warm:triton_program"]\n',
}

WORKER = """
    import json, torch, preheat
    from kernels.model import program

    x = torch.linspace(0, 1, 1000, device="cuda")
    loaded = preheat.load("triton_program", program, on_miss="error", form=FORM)
    output = loaded(x)
    print(json.dumps([loaded.preheat.form, loaded.preheat.misses,
                      float((output - program(x)).abs().max())]))
"""

# File, text, its replacement, whether the package depends on it.
EDITS = [
    ("kernels/model.py", "# a comment", "# another", False),
    ("kernels/model.py", "offsets < n", "offsets <= n - 1", True),
    ("kernels/helpers.py", "x * 2 + SHIFT", "x * 3 + SHIFT", True),
    ("kernels/helpers.py", "constexpr(3)", "constexpr(4)", True),
    ("kernels/model.py", '"BLOCK": 128', '"BLOCK": 256', True),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    project = Project(tmp_path_factory.mktemp("gpu") / "project", FILES)
    warmed = project.preheat("warm", "--json")
    print(warmed.out, warmed.err)  # noqa: T201  the figures are wanted
    assert warmed.code == 0
    return project


@pytest.mark.parametrize("form", ["lean", "dynamo"])
def test_a_users_kernel_is_loaded_without_compilation(project: Project, form: str) -> None:
    worker = project.python(WORKER.replace("FORM", repr(form)))
    assert worker.code == 0, worker.err
    used, misses, error = worker.json()
    assert (used, misses) == (form, 0)
    assert error < 1e-6


@pytest.mark.parametrize(("file", "old", "new", "counts"), EDITS)
def test_an_edit_counts_when_the_kernel_uses_it(
    project: Project, file: str, old: str, new: str, counts: bool
) -> None:
    project.edit(file, old, new)
    try:
        (planned,) = project.preheat("plan", "--json").json()["targets"]
    finally:
        project.edit(file, new, old)
    assert planned["verdict"] == ("STALE" if counts else "FRESH"), planned
