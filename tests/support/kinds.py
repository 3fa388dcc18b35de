"""A project with a target for every kind of compiled code, and a distribution that brings a backend.

It is built in forked processes (``support.capture``), and loaded in fresh ones.
"""

FILES = {
    "kinds_model.py": """
        import torch
        from torch import nn

        SCALE = 2.0


        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.norm = nn.LayerNorm(8)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls.add_(1)
                table = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
                return self.norm(self.linear(x)).relu() * SCALE + table, x.t()


        class Broken(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x):
                y = self.linear(x).sin()
                torch._dynamo.graph_break()
                return y.cos() + 1


        class Whole(nn.Module):
            # For a library: parameters of its own, tied ones, and tensors that are neither.

            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.again = self.linear
                self.register_buffer("shift", torch.ones(8))
                self.table = torch.arange(8.0)
                self.factor = 3.0

            def forward(self, x, *, scale=2.0, extra=None):
                literal = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
                y = self.again(self.linear(x)).relu() * scale * self.factor * SCALE
                y = y + self.shift + self.table + literal
                if extra is not None:
                    y = y + extra["more"]
                return {"y": y, "rest": (y.sum(0), 3, [y * 2])}


        class Regional(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x):
                y = self.linear(x)
                with torch.fx.traceback.annotate({"compile_with_inductor": {}}):
                    y = y.sin() * SCALE + y.cos()
                return (y @ y.t()).relu() + 1


        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            @torch.compiler.nested_compile_region
            def forward(self, x):
                return self.linear(x).sin() * SCALE + x


        class Stacked(nn.Module):
            # The region is compiled once, and called with other parameters each time.

            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Layer() for _ in range(3))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x.relu()


        class Marked(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            @torch.compiler.nested_compile_region
            def forward(self, x):
                y = self.linear(x)
                with torch.fx.traceback.annotate({"compile_with_inductor": {}}):
                    y = y.sin() * SCALE + y.cos()
                return y + x


        class RegionalStacked(nn.Module):
            # Compiled regions within a region that is called again and again.

            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Marked() for _ in range(2))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return (x @ x.t()).relu()


        OUTSIDE = torch.ones(8)


        class Outside(nn.Module):
            def forward(self, x):
                return x + OUTSIDE


        class Changing(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(8))

            def forward(self, x):
                self.calls.add_(1)
                return x + self.calls


        class Viewing(nn.Module):
            def forward(self, x):
                return x.t()


        def branch(flag, x):
            return torch.cond(flag, torch.sin, torch.cos, (x,))


        def waves(x):
            return x.sin() * 3 + x.cos()
    """,
    "cases/kinds.py": """
        import preheat
        import torch

        import kinds_model as model


        def block(backend, **options):
            return preheat.Spec(
                model.Block(), examples=[(torch.randn(4, 8),)], backend=backend, **options
            )


        @preheat.target
        def eager():
            return block("eager", grad=False)


        @preheat.target
        def eager_trained():
            return block("eager", backward=True, run=first_output)


        @preheat.target
        def eager_broken():
            return preheat.Spec(
                model.Broken(), examples=[(torch.randn(4, 8),)], backend="eager", grad=False
            )


        @preheat.target
        def eager_branch():
            return preheat.Spec(
                model.branch,
                examples=[(torch.tensor(True), torch.randn(4)), (torch.tensor(False), torch.randn(4))],
                backend="eager",
                grad=False,
            )


        def first_output(compiled, x):
            output = compiled(x)[0]
            output.sum().backward()
            return output


        @preheat.target
        def aot_eager():
            return block("aot_eager", grad=False)


        @preheat.target
        def aot_eager_trained():
            return block("aot_eager", backward=True, run=first_output)


        @preheat.target
        def inductor():
            return block("inductor", grad=False)


        @preheat.target
        def aoti():
            return preheat.Spec(
                model.Whole().eval(),
                examples=[
                    preheat.Example(torch.randn(4, 8), scale=3.0, extra={"more": torch.randn(8)}),
                    preheat.Example(torch.randn(6, 8), scale=3.0, extra={"more": torch.randn(8)}),
                ],
                output="aoti",
                dynamic_shapes={
                    "x": {0: torch.export.Dim("rows", min=2, max=64)},
                    "scale": None,
                    "extra": {"more": None},
                },
            )


        def library(program):
            return preheat.Spec(program, examples=[(torch.randn(4, 8),)], output="aoti")


        @preheat.target
        def aoti_frozen():
            import torch._inductor.config

            torch._inductor.config.freezing = True
            return library(torch.nn.Linear(8, 8).eval())


        @preheat.target
        def aoti_function():
            return library(model.waves)


        @preheat.target
        def aoti_outside():
            return library(model.Outside())


        @preheat.target
        def aoti_changing():
            return library(model.Changing())


        @preheat.target
        def aoti_viewing():
            return library(model.Viewing())


        @preheat.target
        def regional():
            return preheat.Spec(
                model.Regional(),
                examples=[(torch.randn(4, 8),)],
                backend="regional_inductor",
                grad=False,
            )


        @preheat.target
        def regional_trained():
            return preheat.Spec(
                model.Regional(),
                examples=[(torch.randn(4, 8),)],
                backend="regional_inductor",
                backward=True,
            )


        @preheat.target
        def nested():
            return preheat.Spec(model.Stacked(), examples=[(torch.randn(4, 8),)], grad=False)


        @preheat.target
        def nested_trained():
            return preheat.Spec(model.Stacked(), examples=[(torch.randn(4, 8),)], backward=True)


        @preheat.target
        def regional_nested():
            return preheat.Spec(
                model.RegionalStacked(),
                examples=[(torch.randn(4, 8),)],
                backend="regional_inductor",
                grad=False,
            )


        @preheat.target
        def unmarked():
            return block("regional_inductor", grad=False)


        @preheat.target
        def custom():
            return preheat.Spec(
                model.waves, examples=[(torch.randn(5),)], backend="written_out", grad=False
            )


        @preheat.target
        def raising():
            return preheat.Spec(
                model.waves, examples=[(torch.randn(5),)], backend="raising", grad=False
            )
    """,
}

# Distributions as an installer leaves them: modules, and metadata with entry points.
INSTALLED = {
    "raising.py": '''
        """A backend whose graphs cannot be kept."""


        def backend(graph, inputs):
            return graph.forward


        def serialize(compiled):
            raise OSError("the tape is full")


        def deserialize(data):
            raise AssertionError("nothing was written")
    ''',
    "written_out.py": '''
        """A backend that keeps a graph as text."""
        import torch


        def backend(graph, inputs):
            text = graph.graph.python_code("self").src
            return Compiled(text)


        class Compiled:
            def __init__(self, text):
                self.text = text
                self.names = {"torch": torch}
                exec(text, self.names)

            def __call__(self, *args):
                return self.names["forward"](None, *args)


        def serialize(compiled):
            return compiled.text.encode()


        def deserialize(data):
            return Compiled(data.decode())
    ''',
    "written_out-1.0.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: written-out
        Version: 1.0
    """.lstrip("\n"),
    "written_out-1.0.dist-info/top_level.txt": "written_out\nraising\n",
    "written_out-1.0.dist-info/entry_points.txt": """
        [torch_dynamo_backends]
        written_out = written_out:backend
        raising = raising:backend

        [preheat.kinds]
        written_out = written_out
        raising = raising
    """,
}

# What loads a target, and the kinds of code that its package has.
PROGRAMS = {
    "inductor": ("model.Block()", "torch.randn(4, 8)", "inductor"),
    "eager": ("model.Block()", "torch.randn(4, 8)", "eager"),
    "eager_broken": ("model.Broken()", "torch.randn(4, 8)", "eager"),
    "eager_branch": ("model.branch", "torch.tensor(False), torch.randn(4)", "eager"),
    "aot_eager": ("model.Block()", "torch.randn(4, 8)", "aot_eager"),
    "regional": ("model.Regional()", "torch.randn(4, 8)", "regional"),
    "nested": ("model.Stacked()", "torch.randn(4, 8)", "inductor"),
    "regional_nested": ("model.RegionalStacked()", "torch.randn(4, 8)", "regional"),
    "aoti": (
        "model.Whole().eval()",
        "preheat.Example(torch.randn(7, 8), scale=3.0, extra={'more': torch.randn(8)})",
        "aoti",
    ),
    "custom": ("model.waves", "torch.randn(5)", "custom/written_out"),
}

# Kinds that only one form can hold.
ONE_FORM = {"aoti": ("lean",), "regional": ("dynamo",), "regional_nested": ("dynamo",)}

WORKER = """
    import copy, json, sys
    import torch
    import preheat
    from preheat import errors
    import kinds_model as model

    programs, answers = {programs}, {{}}
    for name, (made, call, _) in programs.items():
        for form in {forms!r}.get(name, ("lean", "dynamo")):
            torch.manual_seed(1)
            program = eval(made)
            plain = copy.deepcopy(program) if isinstance(program, torch.nn.Module) else program
            args, kwargs = eval("(" + call + ",)"), {{}}
            if isinstance(args[0], preheat.Example):
                args, kwargs = args[0].args, args[0].kwargs
            with torch.no_grad():
                try:
                    loaded = preheat.load(name, program, on_miss="error", form=form)
                    got, again = loaded(*args, **kwargs), loaded(*args, **kwargs)
                    plain(*args, **kwargs)
                    wanted = plain(*args, **kwargs)
                    torch.testing.assert_close(again, wanted)
                    answer = "right" if loaded.preheat.misses == 0 else "a miss"
                except errors.MissError as error:
                    answer = str(error)
            answers[name + " " + form] = answer
    print(json.dumps(answers))
"""
