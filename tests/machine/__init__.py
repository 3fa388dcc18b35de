"""A fresh Debian with a real systemd, in which docs/service.md is followed: `make test-machine`."""
