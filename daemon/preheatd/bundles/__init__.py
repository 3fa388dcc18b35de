"""Packages in one file: ``preheat export`` and ``preheat import``."""
