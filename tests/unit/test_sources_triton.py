"""Triton kernels: sources are parsed only; neither Triton nor a GPU is needed."""

from __future__ import annotations

import pytest

from conformance.programs import Program

FILES = {
    "model.py": """
        import torch
        import triton
        import kernels
        def launch(x):
            out = torch.empty_like(x)
            grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
            kernels.scale_kernel[grid](x, out, x.numel(), BLOCK=kernels.BLOCK_SIZE)
            return out
        def make():
            return launch
        """,
    "kernels.py": """
        import triton
        import triton.language as tl
        from device import activate
        BLOCK_SIZE = 128
        LIMIT: tl.constexpr = tl.constexpr(4)
        WARPS = 4
        CONFIGS = [triton.Config({"BLOCK": size}, num_warps=WARPS) for size in (64, 128)]
        @triton.autotune(configs=CONFIGS, key=["n"])
        @triton.jit
        def scale_kernel(x, out, n, BLOCK: tl.constexpr):
            # where this program works
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            mask = offsets < n
            y = activate(tl.load(x + offsets, mask=mask))
            tl.store(out + offsets, tl.minimum(y, LIMIT), mask=mask)
        @triton.jit
        def other_kernel(x):
            tl.store(x, 0)
        """,
    "device.py": """
        import triton
        import triton.language as tl
        SLOPE: tl.constexpr = 0.25
        @triton.jit
        def leak(x):
            return x * SLOPE
        @triton.jit
        def activate(x):
            return tl.where(x > 0, x, leak(x))
        @triton.jit
        def spare(x):
            return x
        """,
}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.of(FILES, "model:make", "model:launch")


@pytest.mark.parametrize(
    ("path", "old", "new", "symbol"),
    [
        ("kernels.py", "tl.minimum(y", "tl.maximum(y", "scale_kernel"),
        ("kernels.py", 'key=["n"]', 'key=["n", "x"]', "scale_kernel"),
        ("kernels.py", "n, BLOCK: tl.constexpr", "n, BLOCK", "scale_kernel"),
        ("kernels.py", "(64, 128)", "(64, 256)", "CONFIGS"),
        ("kernels.py", "WARPS = 4", "WARPS = 8", "WARPS"),
        ("kernels.py", "tl.constexpr(4)", "tl.constexpr(5)", "LIMIT"),
        ("kernels.py", "BLOCK_SIZE = 128", "BLOCK_SIZE = 64", "BLOCK_SIZE"),
        ("device.py", "x * SLOPE", "x / SLOPE", "leak"),
        ("device.py", "= 0.25", "= 0.5", "SLOPE"),
        ("device.py", "x > 0", "x >= 0", "activate"),
        ("model.py", 'meta["BLOCK"]', 'meta["BLOCK"] * 2', "launch"),
    ],
)
def test_kernels_and_what_they_call_count(
    program: Program, path: str, old: str, new: str, symbol: str
) -> None:
    assert program.edited(path, old, new) == [f"symbol_edited {symbol}"]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("kernels.py", "# where this program works", "# here"),
        ("kernels.py", "tl.store(x, 0)", "tl.store(x, 1)"),
        ("kernels.py", "offsets < n\n", "(\n        offsets < n\n    )\n"),
        ("device.py", "    return x\n", "    return -x\n"),
        ("device.py", "import triton\n", "import triton\n\n\n# device functions\n"),
    ],
)
def test_comments_and_other_kernels_do_not(program: Program, path: str, old: str, new: str) -> None:
    assert program.edited(path, old, new) == []
