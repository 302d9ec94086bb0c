import pytest
import torch

from teka import Grid
from teka.experiments.bench.layers import LAYERS, Layer
from teka.experiments.bench.measure import measure_cost
from teka.experiments.bench.rehearse import rehearse
from teka.experiments.bench.step import Step
from teka.nn import Attention

BATCH, TOKENS, DIM = 3, 36, 22
# These backends compute again what rounding may have spoilt, and look at their numbers to see what that is.
LOOKS_AT_NUMBERS = ("fft", "toeplitz")
FORESEEABLE = [layer for layer in LAYERS if layer.backend not in LOOKS_AT_NUMBERS]


def foretold_and_measured(layer: Layer, direction: str) -> tuple[int | None, int]:
    tokens = torch.randn(BATCH, TOKENS, DIM, requires_grad=True)
    step = Step(layer.make(DIM, 2), tokens, layer.grid(TOKENS), direction)
    step()
    step.clear()
    return rehearse(step), measure_cost(step).peak_bytes


@pytest.mark.parametrize("layer", FORESEEABLE, ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_the_memory_foretold_is_what_is_then_measured(layer):
    foretold, measured = foretold_and_measured(layer, "forward_backward")
    assert foretold is not None
    assert measured <= foretold <= 1.1 * measured


@pytest.mark.parametrize("layer", FORESEEABLE[:2], ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_so_it_is_for_a_forward_pass_alone_which_needs_less(layer):
    foretold, measured = foretold_and_measured(layer, "forward")
    assert foretold is not None
    assert measured <= foretold <= 1.1 * measured < foretold_and_measured(layer, "forward_backward")[1]


def test_what_depends_on_the_numbers_cannot_be_rehearsed():
    layer = next(layer for layer in LAYERS if layer.backend == "fft")
    step = Step(layer.make(DIM, 2), torch.randn(BATCH, TOKENS, DIM, requires_grad=True), layer.grid(TOKENS))
    assert rehearse(step) is None


def test_a_rehearsal_takes_no_memory_and_leaves_no_gradients():
    grid = Grid((1000, 1000))
    layer = Attention(8, 2, kernel="taylor2", relative=None, backend="linear")
    tokens = torch.empty(1, 1, 8).expand(1, grid.num_tokens, 8).requires_grad_()
    step = Step(layer, tokens, grid)
    foretold = rehearse(step)
    assert foretold is not None
    assert foretold > 2 * 4 * grid.num_tokens * 2 * 15  # queries and keys have 2 heads of 15 features: 240 MB
    assert step.tokens.grad is None
    assert all(parameter.grad is None for parameter in step.module.parameters())
