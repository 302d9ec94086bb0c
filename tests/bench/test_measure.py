import gc

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.bench.four_gemms import FourGemms
from teka.bench.measure import peak_bytes, seconds, time_in_rounds
from teka.bench.step import Step


class Recorder(nn.Module):
    """Writes its name down when it is called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.name, self.calls = name, calls
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        assert not gc.isenabled()
        self.calls.append(self.name)
        return tokens * self.weight


def recorders(calls: list[str], names: str) -> list[Step]:
    tokens = torch.ones(1, 3, 2, requires_grad=True)
    return [Step(Recorder(name, calls), tokens, Grid((3,))) for name in names]


def test_layers_take_turns_and_warm_up_rounds_do_not_count():
    calls: list[str] = []
    said: list[str] = []
    times = time_in_rounds(recorders(calls, "abc"), repeats=3, warmup=2, progress=said.append)
    assert "".join(calls) == "abc" * 5
    assert [len(column) for column in times] == [3, 3, 3]
    assert all(elapsed > 0 for column in times for elapsed in column)
    assert said == [f"round {index} of 5" for index in range(1, 6)]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collecting: bool):
    (gc.enable if collecting else gc.disable)()
    try:
        time_in_rounds(recorders([], "a"), repeats=1, warmup=0, progress=print)
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


def test_measuring_leaves_no_gradients():
    step = Step(FourGemms(6, 1), torch.ones(1, 5, 6, requires_grad=True), Grid((5,)))
    seconds(step)
    peak_bytes(step)
    assert all(tensor.grad is None for tensor in (step.tokens, *step.module.parameters()))


def test_the_peak_of_the_four_gemms_is_that_of_their_tensors():
    batch, num_tokens, dim = 2, 51, 17
    step = Step(FourGemms(dim, 1), torch.ones(batch, num_tokens, dim, requires_grad=True), Grid((num_tokens,)))
    activation, weight, bias = (4 * size for size in (batch * num_tokens * dim, dim * dim, dim))
    # In the second product's backward pass: the output, two kept activations, two gradients of activations, and those
    # of two layers' parameters.
    assert peak_bytes(step) == 5 * activation + 2 * (weight + bias)
