"""How builds give way to everything else on the machine.

``settings.py`` is the table ``[politeness]`` as a value. Build and proof processes get a low
priority (``priority.py``), as many compile threads as the processor quota allows (``processors.py``)
and a limit of memory (``memory.py``). ``gate.py`` keeps builds from starting while others use a GPU
(``gpus.py``), on battery or under load (``machine.py``).
"""
