import pytest
import torch

from teka import Grid
from teka.bench.layers import LAYERS
from teka.bench.measure import measure_cost
from teka.bench.rehearse import rehearse
from teka.bench.step import DIRECTIONS, Step
from teka.nn import Attention

BATCH, TOKENS, DIM = 3, 36, 22
FORESEEABLE = [layer for layer in LAYERS if layer.backend != "fft"]


@pytest.mark.parametrize("layer", FORESEEABLE, ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_the_memory_foretold_is_what_is_then_measured(layer):
    tokens = torch.randn(BATCH, TOKENS, DIM, requires_grad=True)
    for direction in DIRECTIONS:
        step = Step(layer.make(DIM, 2), tokens, layer.grid(TOKENS), direction)
        step()
        step.clear()
        foretold, measured = rehearse(step), measure_cost(step).peak_bytes
        assert foretold is not None
        assert measured <= foretold <= 1.1 * measured


def test_what_depends_on_the_numbers_cannot_be_rehearsed():
    layer = next(layer for layer in LAYERS if layer.backend == "fft")
    step = Step(layer.make(DIM, 2), torch.randn(BATCH, TOKENS, DIM, requires_grad=True), layer.grid(TOKENS))
    assert rehearse(step) is None


def test_a_rehearsal_takes_no_memory_and_leaves_no_gradients():
    grid = Grid((1000, 1000))
    layer = Attention(8, 2, kernel="taylor2", backend="linear")
    tokens = torch.empty(1, 1, 8).expand(1, grid.num_tokens, 8).requires_grad_()
    step = Step(layer, tokens, grid)
    foretold = rehearse(step)
    assert foretold is not None
    assert foretold > 2 * 4 * grid.num_tokens * 2 * 15  # queries and keys have 2 heads of 15 features: 240 MB
    assert step.tokens.grad is None
    assert all(parameter.grad is None for parameter in step.module.parameters())
