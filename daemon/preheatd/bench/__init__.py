"""``preheat bench``: what preheat saves, measured on the machine where it is asked for.

The code under ``measured`` is copied into a temporary project and runs in processes of its own; the rest
imports neither torch nor that code.
"""
