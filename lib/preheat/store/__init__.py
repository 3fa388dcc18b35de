"""Refs, manifests and objects on disk or in memory."""
