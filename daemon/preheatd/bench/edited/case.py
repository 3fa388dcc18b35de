"""Which program is edited. A copy of the project has this file rewritten."""

PROGRAM = "mlp"
