"""A second project: programs for what lean images do differently from torch's own packages."""

FILES = {
    "lean/__init__.py": "",
    "lean/model.py": """
        import torch
        from torch import nn


        def scaled(factor):
            '''A closure, with a break: what goes on after it needs the free variable.'''
            offset = torch.ones(())

            def program(x, power=2):
                y = x.sin() * factor
                torch._dynamo.graph_break()
                return y**power + factor + offset

            return program


        def signs(x, /, other=None, *rest, scale=2.0, **more):
            total = x * scale if other is None else x * scale + other
            for one in rest:
                total = total - one
            for one in more.values():
                total = total + one.cos()
            return total


        class Looks(nn.Module):
            '''A child with a break: its frame is compiled on its own.'''

            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x).relu()
                torch._dynamo.graph_break()
                return y + 1


        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = Looks()
                self.last = Looks()

            def forward(self, x):
                return self.last(self.first(x) * 2)


        class Late(nn.Module):
            '''A loop that is left to Python, then a module of torch that nothing before has called.'''

            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
                self.norm = nn.LayerNorm(4)

            def through(self, x):
                for layer in self.layers:
                    x = layer(x).relu()
                    torch._dynamo.graph_break()
                return x

            def forward(self, x):
                return self.norm(self.through(x))


        @torch.library.custom_op("lean_tests::thrice", mutates_args=())
        def thrice(x: torch.Tensor) -> torch.Tensor:
            return x * 3


        @thrice.register_fake
        def _(x):
            return torch.empty_like(x)


        class Custom(nn.Module):
            def forward(self, x):
                table = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0])
                return thrice(x + table).relu(), x.expand(2, 10)


        def overlapping(x, y):
            x.add_(1)
            return y * x.sum()
    """,
    "lean/warm.py": """
        import preheat
        import torch
        from lean import model


        @preheat.target
        def closure():
            return preheat.Spec(model.scaled(3.0), examples=[(torch.randn(6),)], grad=False)


        @preheat.target
        def signs():
            x = torch.ones(3)
            return preheat.Spec(
                model.signs,
                examples=[
                    preheat.Example(x),
                    preheat.Example(x, x, x, scale=3.0, extra=x),
                ],
                grad=False,
            )


        @preheat.target
        def nested():
            return preheat.Spec(model.Nested().eval(), examples=[(torch.randn(3, 4),)], grad=False)


        @preheat.target
        def late():
            return preheat.Spec(model.Late().eval(), examples=[(torch.randn(3, 4),)], grad=False)


        @preheat.target
        def custom():
            return preheat.Spec(model.Custom(), examples=[(torch.randn(10),)], grad=False)


        @preheat.target
        def overlapping():
            base = torch.arange(6.0)
            return preheat.Spec(model.overlapping, examples=[(base[:4], base[2:])], grad=False)
    """,
    "preheat.toml": """
        targets = [
            "lean.warm:closure", "lean.warm:signs", "lean.warm:nested", "lean.warm:custom",
            "lean.warm:overlapping", "lean.warm:late",
        ]
        jobs = 2
    """,
}
