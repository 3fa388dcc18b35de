"""The daemon and the command line: asyncio, no torch, no unpickling."""
