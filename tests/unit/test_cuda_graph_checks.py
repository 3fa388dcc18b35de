"""CUDA graphs of lean images: which graphs are captured, and what a capture is good for. No GPU is needed."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from preheat.image import cuda_graphs
from preheat.image.cuda_graphs import CapturedGraph
from preheat.torch_internals.cuda_graph_checks import captured

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = {"cudagraphs": True}


def compiled_graph(**changes: Any) -> Any:
    """What the check reads of a graph that is captured; ``changes`` make it another."""
    given: dict[str, Any] = {
        "disabled_cudagraphs_reason": None,
        "cudagraph_info": SimpleNamespace(cudagraph_fail_reasons=[]),
        "fx_kwargs": {"is_inference": True, "static_input_idxs": [0, 2]},
        "partition_maps": None,
        "device_types": {"cuda"},
        "mutated_input_idxs": {2},
    }
    return SimpleNamespace(**{**given, **changes})


def failing(reason: str) -> Any:
    return SimpleNamespace(cudagraph_fail_reasons=[reason])


AGAINST = {
    "mutated inputs, in torch's words": (
        {"cudagraph_info": failing("mutated inputs")},
        "mutated inputs",
    ),
    "non-tensor inputs": (
        {"cudagraph_info": failing("non-Tensor inputs")},
        "non-Tensor inputs",
    ),
    "expanded dimensions that overlap": (
        {"cudagraph_info": failing("complex memory overlap")},
        "complex memory overlap",
    ),
    "lowering": ({"disabled_cudagraphs_reason": "cpu device (buf0)"}, "cpu device"),
    "operations on the CPU": ({"device_types": {"cuda", "cpu"}}, "operations on cpu"),
    "an input that is changed": ({"mutated_input_idxs": {1}}, "changes an input in place"),
    "partitions": ({"partition_maps": [object(), object()]}, "2 partitions"),
    "a backward pass": (
        {"fx_kwargs": {"is_inference": False, "static_input_idxs": [0, 2]}},
        "backward pass",
    ),
}


def test_a_graph_is_captured_with_its_static_inputs() -> None:
    assert captured(compiled_graph(), ASKED) == (0, 2)
    assert captured(compiled_graph(partition_maps=[object()]), ASKED) == (0, 2)


@pytest.mark.parametrize("reason", AGAINST)
def test_each_reason_alone_keeps_a_graph_away_from_cuda_graphs(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes, words = AGAINST[reason]
    with caplog.at_level(logging.WARNING, "preheat.build"):
        assert captured(compiled_graph(**changes), ASKED) is None
    (record,) = caplog.records
    assert words in record.getMessage()


def test_nobody_is_told_why_what_was_not_asked_for_is_not_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert captured(compiled_graph(), {"cudagraphs": False}) is None
    assert captured(compiled_graph(cudagraph_info=None), ASKED) is None
    assert caplog.records == []


# --- the worker's side, with a stand-in for the GPU ------------------------------------------------


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnGpu)


class Gpu:
    """Records what runs while a graph is captured, and does it again to the same memory."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.current: Any = None
        self.captures = self.replays = self.calls = 0
        self.stream = SimpleNamespace(cuda_stream=7)

    def run(self, args: list[Any]) -> list[Any]:
        self.calls += 1
        given = list(args)
        args.clear()
        outputs: list[Any] = self.program(*given)
        if self.current is not None:
            self.current.made = (given, outputs)
        return outputs

    @contextlib.contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        self.captures += 1
        self.current = graph
        try:
            yield
        finally:
            self.current = None

    def graph(self) -> Any:
        def replay() -> None:
            self.replays += 1
            given, outputs = graph.made
            for output, again in zip(outputs, self.program(*given), strict=True):
                if isinstance(output, torch.Tensor):
                    output.copy_(again)

        graph = SimpleNamespace(replay=replay, made=None)
        return graph


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A maker of captured graphs."""

    def make(program: Any, *static: int) -> tuple[Gpu, CapturedGraph]:
        made = Gpu(program)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", made.graph)
        monkeypatch.setattr(torch.cuda, "graph", made.capture)
        return made, CapturedGraph(made.run, static)

    return make


def filled(value: float, *shape: int) -> torch.Tensor:
    return on_gpu(torch.full(shape or (4,), value))


def test_later_calls_are_replayed_with_their_own_inputs_and_give_copies(gpu: Any) -> None:
    machine, graph = gpu(lambda weight, x: [x * weight], 0)
    weight = filled(3)
    results = [graph([weight, filled(number)])[0] for number in range(5)]
    assert (machine.captures, machine.replays, machine.calls) == (1, 4, 2)
    assert [float(one[0]) for one in results] == [0, 3, 6, 9, 12]
    weight.mul_(2)  # in place: the address is what was captured
    assert float(graph([weight, filled(1)])[0][0]) == 6


def test_a_parameter_that_moved_is_captured_again(gpu: Any) -> None:
    machine, graph = gpu(lambda weight, x: [x * weight], 0)
    kept = [filled(number) for number in range(12)]
    for weight in kept:
        assert float(graph([weight, filled(2)])[0][0]) == 2 * float(weight[0])
    assert machine.captures == 4  # then it is not worth it


def test_arguments_are_taken_out_of_the_list_in_every_case(gpu: Any) -> None:
    """The convention of generated code: whoever calls keeps nothing alive."""
    _, graph = gpu(lambda x: [x + 1])
    for _ in range(3):
        args = [filled(1)]
        graph(args)
        assert args == []


def test_other_numbers_are_other_graphs(gpu: Any) -> None:
    """A number that is no tensor is part of what was captured."""
    machine, graph = gpu(lambda size, x: [x * size])
    for size in (2, 2, 3, 3, 2, 3):
        assert float(graph([size, filled(1)])[0][0]) == size
    assert machine.captures == 2


@pytest.mark.parametrize(
    "argument",
    [
        on_gpu(torch.ones(1)).expand(4),
        on_gpu(torch.arange(6.0)).as_strided((4, 2), (1, 1)),
        torch.ones(4),
    ],
    ids=["expanded", "overlapping", "on the CPU"],
)
def test_what_cannot_be_copied_to_its_place_runs_as_it_is(gpu: Any, argument: torch.Tensor) -> None:
    machine, graph = gpu(lambda x: [x * 2])
    for _ in range(4):
        assert torch.equal(graph([argument])[0], argument * 2)
    assert (machine.captures, machine.calls) == (0, 4)


def test_a_result_that_is_an_input_is_never_a_copy(gpu: Any) -> None:
    machine, graph = gpu(lambda buffer: [buffer.add_(1)], 0)
    buffer = filled(0)
    for number in range(1, 6):
        result = graph([buffer])[0]
        assert float(result[0]) == float(buffer[0])
        assert result.data_ptr() == buffer.data_ptr() or number == 2
    assert machine.replays == 0


def test_an_operation_that_cannot_be_captured_runs_as_it_is(gpu: Any) -> None:
    def refusing(x: torch.Tensor) -> list[torch.Tensor]:
        if machine.current is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return [x * 2]

    machine, graph = gpu(refusing)
    for _ in range(4):
        assert torch.equal(graph([filled(1)])[0], filled(2))
    assert (machine.captures, machine.replays) == (1, 0)


def test_a_call_on_another_stream_runs_as_it_is(gpu: Any) -> None:
    machine, graph = gpu(lambda x: [x * 2])
    for _ in range(3):
        graph([filled(1)])
    machine.stream = SimpleNamespace(cuda_stream=8)
    before = machine.replays
    assert torch.equal(graph([filled(1)])[0], filled(2))
    assert machine.replays == before


# --- each check is needed --------------------------------------------------------------------------

NEEDED = {
    "copies of results": (
        ("CapturedGraph", "_replay"),
        test_later_calls_are_replayed_with_their_own_inputs_and_give_copies,
    ),
    "addresses": (("_Captured", "fits"), test_a_parameter_that_moved_is_captured_again),
    "the stream": (("_Captured", "on_current_stream"), test_a_call_on_another_stream_runs_as_it_is),
    "shared memory": (("", "_share_memory"), test_a_result_that_is_an_input_is_never_a_copy),
}


def _same_results(graph: Any, captured: Any, args: list[Any]) -> Any:
    for place, arg in zip(captured.inputs, args, strict=True):
        if place is not arg:
            place.copy_(arg)
    args.clear()
    captured.graph.replay()
    return captured.outputs


WITHOUT: dict[str, Any] = {
    "copies of results": _same_results,
    "addresses": lambda *_: True,
    "the stream": lambda *_: True,
    "shared memory": lambda *_: False,
}


@pytest.mark.parametrize("step", NEEDED)
def test_without_a_step_its_test_fails(
    step: str, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner, name), test = NEEDED[step]
    place: Any = getattr(cuda_graphs, owner) if owner else cuda_graphs
    monkeypatch.setattr(place, name, WITHOUT[step])
    with pytest.raises(AssertionError):
        test(gpu)


@pytest.mark.parametrize("kind", ["expanded", "overlapping", "on the CPU"])
def test_without_the_look_at_inputs_they_are_captured(
    kind: str, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, graph = gpu(lambda x: [x * 2])
    monkeypatch.setattr(cuda_graphs, "_can_be_captured", lambda _: True)
    argument = {
        "expanded": on_gpu(torch.ones(1)).expand(4),
        "overlapping": on_gpu(torch.arange(6.0)).as_strided((4, 2), (1, 1)),
        "on the CPU": torch.ones(4),
    }[kind]
    with contextlib.suppress(RuntimeError):
        for _ in range(4):
            graph([argument])
    assert machine.captures > 0
