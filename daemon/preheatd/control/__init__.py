"""The daemon's control interface: HTTP over a unix socket, and over TCP on loopback where asked for."""
