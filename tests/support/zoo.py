"""One project with many kinds of targets, warmed once for all tests that only load."""

FILES = {
    "zoo/__init__.py": "",
    "zoo/model.py": '''
        """Programs that each have something that a careless package gets wrong."""
        import enum

        import torch
        import torch.nn.functional as F
        from torch import nn

        SCALE = 1.0


        class Encoder(nn.Module):
            def __init__(self, width=16, act=F.relu):
                super().__init__()
                self.linear = nn.Linear(width, width)
                self.act = act

            def forward(self, x):
                return self.act(self.linear(x)) * SCALE


        class Mode(enum.Enum):
            ONCE = 1
            TWICE = 2


        def by_mode(x, mode):
            return x.sin() * 2 if mode is Mode.TWICE else x.sin()


        class Inner(nn.Module):
            def forward(self, x):
                y = x + 1
                torch._dynamo.graph_break()
                return y.cos()


        class Broken(nn.Module):
            """Graph breaks: a print, a branch on data, and one inside of a child."""

            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.inner = Inner()

            def forward(self, x):
                y = self.linear(x).relu()
                print("a side effect")
                y = y + 1 if y.sum() > 0 else y - 1
                return self.inner(y) * 2


        class Counter(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls.add_(1)
                return x + self.calls
    ''',
    "zoo/left.py": "def program(x):\n    return (x * 2).tanh()\n",
    "zoo/right.py": "def program(x):\n    return (x * 3).sigmoid()\n",
    "zoo/mainly.py": """
        import torch


        def program(x):
            helper = x.exp() + 1
            return helper.log()


        if __name__ == "__main__":
            import json
            import preheat

            loaded = preheat.load("mainly", program, on_miss="error")
            x = torch.linspace(0, 1, 12)
            with torch.no_grad():
                same = torch.allclose(loaded(x), program(x))
            print(json.dumps({"same": same, "form": loaded.preheat.form}))
    """,
    "zoo/warm.py": '''
        import preheat
        import torch
        import torch.nn.functional as F

        from zoo import left, mainly, model, right


        @preheat.target
        def encoder():
            return preheat.Spec(
                model.Encoder().eval(),
                examples=[(torch.randn(8, 16),), (torch.randn(32, 16),)],
                grad=False,
            )


        @preheat.target
        def wide_gelu():
            """The same class with another size and another activation."""
            return preheat.Spec(
                model.Encoder(24, F.gelu).eval(), examples=[(torch.randn(4, 24),)], grad=False
            )


        @preheat.target
        def modes():
            x = torch.randn(6)
            return preheat.Spec(
                model.by_mode,
                examples=[
                    preheat.Example(x, model.Mode.ONCE),
                    preheat.Example(x, mode=model.Mode.TWICE),
                ],
                grad=False,
            )


        @preheat.target
        def broken():
            return preheat.Spec(
                model.Broken().eval(),
                examples=[(torch.ones(4, 8),), (torch.full((4, 8), -9.0),)],
                grad=False,
            )


        @preheat.target
        def training():
            return preheat.Spec(model.Encoder(12), examples=[(torch.randn(5, 12),)], backward=True)


        @preheat.target
        def counter():
            return preheat.Spec(model.Counter(), examples=[(torch.randn(3),)], grad=False)


        @preheat.target
        def random():
            return preheat.Spec(
                torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)),
                examples=[(torch.randn(4, 8),)],
                grad=False,
            )


        @preheat.target
        def autocast():
            return preheat.Spec(
                model.Encoder(20).eval(),
                examples=[(torch.randn(4, 20),)],
                grad=False,
                context=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
            )


        @preheat.target
        def left_program():
            return preheat.Spec(left.program, examples=[(torch.randn(7),)], grad=False)


        @preheat.target
        def right_program():
            return preheat.Spec(right.program, examples=[(torch.randn(7),)], grad=False)


        @preheat.target(name="mainly")
        def mainly_target():
            return preheat.Spec(mainly.program, examples=[(torch.linspace(0, 1, 12),)], grad=False)
    ''',
    "preheat.toml": """
        targets = [
            "zoo.warm:encoder",
            "zoo.warm:wide_gelu",
            "zoo.warm:modes",
            "zoo.warm:broken",
            "zoo.warm:training",
            "zoo.warm:counter",
            "zoo.warm:random",
            "zoo.warm:autocast",
            "zoo.warm:left_program",
            "zoo.warm:right_program",
            "zoo.warm:mainly_target",
        ]
        jobs = 2
    """,
}
