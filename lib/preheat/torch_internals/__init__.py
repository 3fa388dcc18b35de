"""The only place, with ``preheat.image``, that touches private torch API.

One module a concern; ``versions`` says which torch releases are known; ``tests/integration/
test_torch_contracts.py`` pins every private name that is used here, so that a new torch release says
what broke.
"""
