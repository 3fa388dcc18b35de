"""A project of programs that are trained: both passes are in their lean images."""

FILES = {
    "trained/__init__.py": "",
    "trained/model.py": """
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(8, 16)
                self.norm = nn.BatchNorm1d(16)
                self.last = nn.Linear(16, 4)

            def forward(self, x):
                return self.last(self.norm(self.first(x)).relu()).log_softmax(-1)


        class Broken(nn.Module):
            '''Two graphs with a break between them, one of them in a frame of its own.'''

            def __init__(self):
                super().__init__()
                self.first = nn.Linear(4, 4)
                self.inner = Inner()

            def forward(self, x):
                return self.inner(self.first(x).tanh()) * 3


        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x).sigmoid()
                torch._dynamo.graph_break()
                return y * x


        def views(x, scale):
            '''Results that are views of each other, of an input, and one without gradients.'''
            y = (x * scale).sin()
            return y.view(-1)[:6], y.t(), x.view(-1), y.argmax(-1)


        def changed(x, buffer):
            '''Changes an input that is part of a history, and one that is not.'''
            x.mul_(2)
            buffer.add_(1)
            return (x * buffer).cos()


        def rows(x, w):
            return (x @ w).relu() * x.shape[0]


        def laid_out(x):
            return x.exp().transpose(0, 1)


        def kept(x):
            return x.exp() * x.sin()
    """,
    "trained/warm.py": """
        import preheat
        import torch
        from trained import model


        @preheat.target
        def net():
            return preheat.Spec(model.Net(), examples=[(torch.randn(5, 8),)], backward=True)


        @preheat.target
        def broken():
            return preheat.Spec(model.Broken(), examples=[(torch.randn(3, 4),)], backward=True)


        @preheat.target
        def views():
            x = torch.randn(3, 4, requires_grad=True)
            return preheat.Spec(model.views, examples=[(x, torch.tensor(2.0))], backward=True)


        def on_a_copy(compiled, x, buffer):
            x = x.requires_grad_()
            y = compiled(x * 1.0, buffer)
            y.sum().backward()
            return y, x.grad, buffer


        @preheat.target
        def changed():
            return preheat.Spec(
                model.changed,
                examples=[(torch.randn(4), torch.ones(4))],
                grad=True,
                run=on_a_copy,
            )


        @preheat.target
        def rows():
            w = torch.randn(4, 2, requires_grad=True)
            examples = [(torch.randn(n, 4), w) for n in (3, 6)]
            return preheat.Spec(model.rows, examples=examples, backward=True, dynamic=True)


        @preheat.target
        def half():
            x = torch.randn(4, 4, requires_grad=True)
            w = torch.randn(4, 4, requires_grad=True)
            return preheat.Spec(
                model.rows,
                examples=[(x, w)],
                backward=True,
                context=lambda: torch.autocast("cpu", torch.bfloat16),
            )


        @preheat.target
        def laid_out():
            x = torch.randn(3, 5, requires_grad=True)
            return preheat.Spec(model.laid_out, examples=[(x,)], backward=True)


        @preheat.target
        def kept():
            # No backward pass is asked for, and there is one.
            return preheat.Spec(model.kept, examples=[(torch.randn(6, requires_grad=True),)], grad=True)
    """,
    "preheat.toml": """
        targets = [
            "trained.warm:net", "trained.warm:broken", "trained.warm:views", "trained.warm:changed",
            "trained.warm:rows", "trained.warm:half", "trained.warm:laid_out", "trained.warm:kept",
        ]
        jobs = 2
    """,
}
TARGETS = ("net", "broken", "views", "changed", "rows", "half", "laid_out", "kept")
