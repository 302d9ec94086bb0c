import pytest
import torch

from teka import Grid
from teka.bench.four_gemms import FourGemms
from teka.bench.layers import LAYERS
from teka.bench.measure import peak_bytes
from teka.bench.peers import FusedSoftmax
from teka.bench.rehearse import rehearse
from teka.bench.step import Step
from teka.nn import Attention

BATCH, TOKENS, DIM = 3, 35, 22


def step_of(module: torch.nn.Module) -> Step:
    return Step(module, torch.randn(BATCH, TOKENS, DIM, requires_grad=True), Grid((5, 7)))


def test_the_four_gemms_take_two_flops_a_multiply_add_and_twice_as_many_backward():
    forward = 4 * 2 * BATCH * TOKENS * DIM**2
    assert rehearse(step_of(FourGemms(DIM, 2))).flops == 3 * forward


def test_fused_attention_counts_its_products_and_the_scores_recomputed_backward():
    product = 2 * BATCH * TOKENS**2 * DIM
    flops = rehearse(step_of(FusedSoftmax(DIM, 2))).flops
    assert flops == rehearse(step_of(FourGemms(DIM, 2))).flops + (2 + 5) * product


def test_linear_attention_counts_the_state_and_its_use():
    step = step_of(Attention(DIM, 2, backend="linear"))
    # The state, its product with the queries and its product with Σφ(k): m (d + d + 1) multiply-adds a token and head.
    forward = 2 * BATCH * TOKENS * 2 * 11 * (11 + 11 + 1)
    assert rehearse(step).flops == rehearse(step_of(FourGemms(DIM, 2))).flops + 3 * forward


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.name}-{layer.backend}")
def test_the_memory_foretold_is_what_is_then_measured(layer):
    step = step_of(layer.make(DIM, 2))
    step()
    step.clear()
    measured = peak_bytes(step)
    assert measured <= rehearse(step).peak_bytes <= 1.1 * measured


def test_a_rehearsal_takes_no_memory_and_leaves_no_gradients():
    grid = Grid((400, 400))
    layer = Attention(8, 2, kernel="squared_relu", backend="dense")
    step = Step(layer, torch.zeros(1, grid.num_tokens, 8, requires_grad=True), grid)
    assert rehearse(step).peak_bytes > 2 * 4 * grid.num_tokens**2  # 205 GB of scores
    assert step.tokens.grad is None
    assert all(parameter.grad is None for parameter in step.module.parameters())
