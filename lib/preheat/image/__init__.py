"""Lean images: compiled code that a worker runs without the compiler.

Nothing here imports ``torch._dynamo``, ``torch._inductor``, sympy or triton. The build process fills an
image through ``preheat.torch_internals.image_writer``; a worker loads it with
``preheat.image.load.install_image``.

| module | what it holds |
|---|---|
| ``format`` | the records of an image, their bytes, and the limits of what is read |
| ``values`` | Python values that have a meaning in another process |
| ``codes`` | code objects: compiled bytecode, original code, entry points |
| ``guards`` | torch's own guard tree, built again from its record |
| ``graphs`` | compiled graphs: generated code, kernels, what AOTAutograd does around them |
| ``standins`` | small replacements for what generated code takes from the compiler |
| ``load`` | all of it put together: a callable |
"""
