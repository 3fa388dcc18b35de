"""Stores that are reached through fsspec: ``preheat push`` and ``preheat pull``."""
