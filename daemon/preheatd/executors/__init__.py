"""Builds for environments that this machine does not have: through executors that the user names."""
