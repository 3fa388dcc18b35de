"""Which program is measured. A copy of the project has this file rewritten."""

PROGRAM = "mlp"
DEVICE = "cpu"
LAYERS = 2
WARM_LIBRARIES = False
