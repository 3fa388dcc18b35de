"""Kinds of compiled code behind one interface (``preheat.kinds.interface``): one module each.

A package's manifest names the kinds in each of its forms. A form says how a program is put in place; a kind
says what runs for one of its graphs.
"""
