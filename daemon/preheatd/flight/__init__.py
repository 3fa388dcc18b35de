"""One node builds, the others wait: single flight of builds over nodes that share a remote store."""
