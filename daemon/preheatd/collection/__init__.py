"""Collection of the store by the daemon and by ``preheat collect``: settings, what is kept, the command."""
