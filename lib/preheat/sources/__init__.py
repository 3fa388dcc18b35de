"""What a package depends on, and whether it changed.

Reads and parses files; never imports or executes them. Imports neither torch nor asyncio. The rule
today: every module that the build executed counts as a whole, by ``module_digest``.
"""
