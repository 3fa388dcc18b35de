"""Lean images: compiled code that a worker runs without the compiler.

Nothing here imports ``torch._dynamo``, ``torch._inductor``, sympy or triton. The build process fills an
image through ``preheat.torch_internals.image_writer``; a worker loads it with
``preheat.image.load.install_image``.

| module | what it holds |
|---|---|
| ``format`` | the records of an image, their bytes, and the limits of what is read |
| ``values`` | Python values that have a meaning in another process; tensors: ``constants``, ``weights`` |
| ``codes`` | entry points: what runs in place of a code object |
| ``guards`` | torch's own guard tree, built again from its record, with ``enumeration`` |
| ``checking`` | guards together with ``call_checks``, which compare ``fingerprints`` instead of identities |
| ``graphs`` | generated code, what AOTAutograd does around it; ``kernels`` and ``triton`` |
| ``standins`` | small replacements for what generated code takes from the compiler |
| ``nested`` | frames that were compiled on their own; ``installed`` for what is put on code objects |
| ``programs`` | what a target is; ``operators`` for custom operators |
| ``reading``, ``load`` | an image from a package, and all of it put together: a callable |
"""
