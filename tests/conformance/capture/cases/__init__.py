"""Programs of many kinds, each a target of the project that the folder above is.

A case is one factory, or several whose names go on after two underscores: ``c51_files__a`` and
``c51_files__b`` are loaded into one process. Where a program is more than one call of one target,
``use_<case>(load)`` in the same module says how a worker uses it: ``load(target, fn)`` is
``preheat.load``, or for the comparison gives ``fn`` back.
"""
