"""What a package depends on, and whether it changed.

Reads and parses files; never imports or executes them. Imports neither torch nor asyncio. The rule: a
package depends on a closure of named pieces of its modules (``closure``), and a changed file counts
where a piece in the closure changed (``compare``). Without a closure every module that the build
executed counts as a whole, by ``module_digest``.
"""
