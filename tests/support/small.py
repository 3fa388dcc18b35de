"""A project of one small function, quick to build; its factory can be held up at a chosen place."""

FILES = {
    "app/__init__.py": "",
    "app/model.py": """
        import torch

        FACTOR = 2.0


        def helper(x):
            # a comment
            return x.sin() * FACTOR


        def program(x):
            return helper(x) + 1
    """,
    "app/gates.py": '''
        """Lets a test hold a build up at a named place: it waits for an answer on a socket.

        Neither a file nor a variable is asked for, because the build would record those.
        """
        import socket

        ADDRESS = chr(0) + "preheat-gate" + __file__


        def gate(name):
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(ADDRESS) == 0:
                    connection.sendall(name.encode())
                    connection.recv(1)
    ''',
    "app/warm.py": """
        import preheat
        import torch

        from app import model
        from app.gates import gate


        def run(compiled, x):
            output = compiled(x)
            gate("called")
            return output


        @preheat.target
        def program():
            gate("constructing")
            return preheat.Spec(
                model.program, examples=[(torch.linspace(0, 1, 16),)], grad=False, run=run
            )
    """,
    "preheat.toml": """
        targets = ["app.warm:program"]
        watch = ["app"]
    """,
}

WORKER = """
    import json, torch, preheat
    from app.model import program

    x = torch.linspace(0, 1, 16)
    loaded = preheat.load("program", program, on_miss="error")
    output = loaded(x)
    report = loaded.preheat
    print(json.dumps({
        "right": bool(torch.allclose(output, program(x))),
        "last": float(output[-1]),
        "frames_compiled": report.frames_compiled,
        "form": report.form,
    }))
"""
