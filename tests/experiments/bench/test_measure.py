import gc

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.experiments.bench.budget import Pace
from teka.experiments.bench.four_gemms import FourGemms
from teka.experiments.bench.measure import measure_cost, seconds, time_in_rounds
from teka.experiments.bench.peers import FusedSoftmax
from teka.experiments.bench.step import Step
from teka.nn import Attention

ALL_THE_TIME = Pace()


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


def rounds(steps: list[Step], repeats: int, warmup: int, pace: Pace = ALL_THE_TIME, said=print) -> list[list[float]]:
    return time_in_rounds(steps, repeats=repeats, warmup=warmup, pace=pace, round_seconds=1.0, progress=said)


def test_layers_take_turns_and_warm_up_rounds_do_not_count():
    calls: list[str] = []
    said: list[str] = []
    times = rounds(recorders(calls, "abc"), repeats=3, warmup=2, said=said.append)
    assert "".join(calls) == "abc" * 5
    assert [len(column) for column in times] == [3, 3, 3]
    assert all(elapsed > 0 for column in times for elapsed in column)
    assert said == ["warm-up 1 of 2", "warm-up 2 of 2", "round 1 of 3", "round 2 of 3", "round 3 of 3"]


@pytest.mark.parametrize(("pace", "count"), [(Pace(0.0), 3), (Pace(0.0, 0.0), 1)])
def test_without_time_there_is_no_warm_up_and_three_rounds_or_one(pace: Pace, count: int):
    calls: list[str] = []
    times = rounds(recorders(calls, "ab"), repeats=5, warmup=2, pace=pace)
    assert "".join(calls) == "ab" * count
    assert [len(column) for column in times] == [count, count]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collecting: bool):
    (gc.enable if collecting else gc.disable)()
    try:
        rounds(recorders([], "a"), repeats=1, warmup=0)
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


def test_measuring_leaves_no_gradients():
    step = Step(FourGemms(6, 1), torch.ones(1, 5, 6, requires_grad=True), Grid((5,)))
    seconds(step)
    measure_cost(step)
    assert all(tensor.grad is None for tensor in (step.tokens, *step.module.parameters()))


def test_the_peak_of_the_four_gemms_is_that_of_their_tensors():
    batch, num_tokens, dim = 2, 51, 17
    step = Step(FourGemms(dim, 1), torch.ones(batch, num_tokens, dim, requires_grad=True), Grid((num_tokens,)))
    activation, weight, bias = (4 * size for size in (batch * num_tokens * dim, dim * dim, dim))
    # In the second product's backward pass: the output, two kept activations, two gradients of activations, and those
    # of two layers' parameters.
    assert measure_cost(step).peak_bytes == 5 * activation + 2 * (weight + bias)


def test_a_forward_pass_alone_keeps_nothing():
    batch, num_tokens, dim = 2, 51, 17
    tokens = torch.ones(batch, num_tokens, dim, requires_grad=True)
    step = Step(FourGemms(dim, 1), tokens, Grid((num_tokens,)), "forward")
    cost = measure_cost(step)
    assert cost.peak_bytes == 2 * 4 * batch * num_tokens * dim  # a product's input and output
    assert cost.flops == 4 * 2 * batch * num_tokens * dim**2
    step()
    assert tokens.grad is None


BATCH, TOKENS, DIM = 3, 35, 22


def flops_of(module: nn.Module) -> int:
    return measure_cost(Step(module, torch.randn(BATCH, TOKENS, DIM, requires_grad=True), Grid((5, 7)))).flops


def test_the_four_gemms_take_two_flops_a_multiply_add_and_twice_as_many_backward():
    assert flops_of(FourGemms(DIM, 2)) == 3 * 4 * 2 * BATCH * TOKENS * DIM**2


def test_fused_attention_counts_its_products_and_the_scores_recomputed_backward():
    product = 2 * BATCH * TOKENS**2 * DIM
    assert flops_of(FusedSoftmax(DIM, 2)) == flops_of(FourGemms(DIM, 2)) + (2 + 5) * product


def test_linear_attention_counts_its_six_products_and_little_else():
    # The state and its use, and in the backward pass two of each: m d multiply-adds a token and head, and for the
    # denominator some more of size m.
    products = 6 * 2 * BATCH * TOKENS * 2 * 11 * 11
    flops = flops_of(Attention(DIM, 2, relative=None, backend="linear")) - flops_of(FourGemms(DIM, 2))
    assert products <= flops <= (1 + 3 / 11) * products
