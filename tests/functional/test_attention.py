import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from teka import Grid
from teka.functional import ClippedDistanceBias, PositiveFeatures, SinusoidalBias, attention
from tests.contracts.cases import draw_inputs, draw_mask, relative_error

TOLERANCE = 1e-12


def rotation(heads: int, num_axes: int) -> SinusoidalBias:
    """A rotation kernel with two scales."""
    cosine_weight, sine_weight = torch.randn(
        2, heads, num_axes, 2, dtype=torch.float64, generator=Generator().manual_seed(0)
    )
    return SinusoidalBias(torch.ones(2, dtype=torch.float64), cosine_weight, sine_weight)


def test_default_is_softmax_attention():
    query, key, value = draw_inputs(11)
    mask = draw_mask(2, 11)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[:, None, None, :]
    )
    assert relative_error(attention(query, key, value, key_mask=mask), expected) <= TOLERANCE


def test_attention_equals_loops_over_pairs():
    query, key, value = draw_inputs(6, batch=1, heads=2, dim_value=3)
    grid = Grid((2, 3), (1.0, 0.5))
    relative = dataclasses.replace(
        rotation(2, 2), frequency=torch.tensor([1.0, 0.3]).double(), scale=0.7
    )
    output = attention(query, key, value, relative=relative, grid=grid, scale=0.4)
    positions = grid.positions(dtype=torch.float64).tolist()
    for head in range(2):
        for i in range(6):
            numerator, denominator = torch.zeros(3, dtype=torch.float64), 0.0
            for j in range(6):
                log_weight = 0.4 * float(query[0, head, i] @ key[0, head, j])
                for axis in range(2):
                    offset = positions[i][axis] - positions[j][axis]
                    for scale, frequency in enumerate((1.0, 0.3)):
                        alpha = float(relative.cosine_weight[head, axis, scale])
                        beta = float(relative.sine_weight[head, axis, scale])
                        # The frequencies of the kernel were rounded to float32.
                        phase = float(torch.tensor(frequency)) * offset
                        log_weight += 0.7 * (alpha * math.cos(phase) + beta * math.sin(phase))
                numerator += math.exp(log_weight) * value[0, head, j]
                denominator += math.exp(log_weight)
            assert relative_error(output[0, head, i], numerator / denominator) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "constant", "positive"])
def test_number_of_queries_can_differ_from_number_of_keys(kernel: str):
    query, key, value = draw_inputs(7)
    query = draw_inputs(4, seed=1)[0]
    assert attention(query, key, value, kernel=kernel).shape == (2, 3, 4, 4)


def test_grid_can_be_a_shape_or_a_length():
    inputs = draw_inputs(15)
    output = attention(*inputs, relative="rotation", grid=Grid((3, 5)))
    assert torch.equal(attention(*inputs, relative="rotation", grid=(3, 5)), output)
    line = attention(*inputs, relative="rotation", grid=Grid(15))
    assert torch.equal(attention(*inputs, relative="rotation", grid=15, key_grid=15), line)


def test_grid_and_its_positions_give_equal_outputs():
    inputs = draw_inputs(15)
    grid = Grid((3, 5), (0.5, 2.0))
    by_grid = attention(*inputs, relative="rotation", grid=grid)
    for positions in (grid.positions(), grid.positions().expand(2, -1, -1), grid.positions()[None]):
        by_positions = attention(*inputs, relative="rotation", positions=positions)
        assert relative_error(by_positions, by_grid) <= TOLERANCE


def test_every_sample_has_its_own_positions():
    inputs = draw_inputs(7)
    positions = torch.rand(2, 7, 3, dtype=torch.float64)
    together = attention(*inputs, relative="clipped", positions=4 * positions)
    for sample in range(2):
        part = slice(sample, sample + 1)
        alone = attention(
            *(tensor[part] for tensor in inputs),
            relative="clipped",
            positions=4 * positions[sample],
        )
        assert relative_error(together[part], alone) <= TOLERANCE


def test_named_random_kernel_ignores_the_global_seed():
    inputs, outputs = draw_inputs(15), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(
            attention(*inputs, kernel="positive", relative="rotation", grid=Grid((3, 5)))
        )
    assert torch.equal(*outputs)


def test_underflowing_weights_give_finite_outputs():
    query, key, value = draw_inputs(5, dtype=torch.float32)
    huge = SinusoidalBias(
        torch.tensor([math.pi]), torch.full((3, 1, 1), 1e4), torch.full((3, 1, 1), 1e4)
    )
    output = attention(query, key, value, kernel="squared_relu", relative=huge, grid=Grid((5,)))
    assert torch.isfinite(output).all()


def rotation_of_two_scales(heads: int, num_axes: int) -> SinusoidalBias:
    """A rotation kernel with two scales."""
    weight = torch.ones(heads, num_axes, 2)
    return SinusoidalBias(torch.ones(2), weight, weight)


def call(**changed: Any) -> Tensor:
    query, key, value = draw_inputs(15)
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value, **changed}
    return attention(**arguments)


ZEROS = torch.zeros(2, 3, 15, 5).double()
GRID = Grid((3, 5))
NAN_POSITIONS = torch.full((15, 2), math.nan)
BAD = {
    "query of rank 3": (
        {"query": ZEROS[0]},
        r"query must have shape \(batch, heads, tokens, dim\).*got \(3, 15, 5\)",
    ),
    "key of rank 5": ({"key": ZEROS[None]}, r"key must have shape .*got \(1, 2, 3, 15, 5\)"),
    "value of rank 2": ({"value": ZEROS[0, 0]}, r"value must have shape .*got \(15, 5\)"),
    "key of another batch": (
        {"key": ZEROS[:1]},
        r"key must have shape \(2, 3, tokens, 5\).*got \(1, 3, 15, 5\)",
    ),
    "key of other heads": ({"key": ZEROS[:, :1]}, r"key must have shape .*got \(2, 1, 15, 5\)"),
    "key of another size": ({"key": ZEROS[..., :4]}, r"key must have shape .*got \(2, 3, 15, 4\)"),
    "no tokens": (
        {"query": ZEROS[:, :, :0], "key": ZEROS[:, :, :0]},
        r"query must have .* only batch may be 0.*got \(2, 3, 0, 5\)",
    ),
    "value of another length": (
        {"value": ZEROS[:, :, :14]},
        r"value must have shape \(2, 3, 15, dim\).*got \(2, 3, 14, 5\)",
    ),
    "key of another dtype": (
        {"key": ZEROS.float()},
        r"key must be .*torch.float64.*got torch.float32",
    ),
    "a list": (
        {"query": ZEROS.tolist()},
        r"query must be a tensor of a floating-point dtype.*got an object of type list",
    ),
    "an array": (
        {"value": ZEROS.numpy()},
        r"value must be a tensor.*got an object of type ndarray",
    ),
    "complex numbers": (
        {"key": ZEROS.to(torch.complex64)},
        r"key must be of a floating-point dtype.*got torch.complex64",
    ),
    "whole numbers": (
        {"query": ZEROS.long()},
        r"query must be of a floating-point dtype.*got torch.int64",
    ),
    "other lengths with positions": (
        {"query": ZEROS[:, :, :14], "relative": "rotation", "grid": GRID},
        r"the sequence must have 0 prefix \+ 15 tokens of the grid \(3, 5\).*got 14 tokens",
    ),
    "a word for a grid": (
        {"grid": "wide", "relative": "rotation"},
        r"grid must be a teka.Grid, its shape or its length, got 'wide'",
    ),
    "a grid of another length": (
        {"grid": Grid((3, 4)), "relative": "rotation"},
        r"must have .* 12.*got 15 tokens",
    ),
    "a grid that leaves out the prefix": (
        {"grid": GRID, "relative": "rotation", "num_prefix_tokens": 1},
        r"must have 1 prefix \+ 15.*got 15 tokens",
    ),
    "fewer than no prefix": (
        {"grid": GRID, "relative": "rotation", "num_prefix_tokens": -1},
        r"num_prefix_tokens must be .*got -1",
    ),
    "a prefix and no position": ({"num_prefix_tokens": -1}, r"num_prefix_tokens must be .*got -1"),
    "neither grid nor positions": (
        {"relative": "rotation"},
        r"grid or positions must be given, .*got neither",
    ),
    "both grid and positions": (
        {"relative": "rotation", "grid": GRID, "positions": GRID.positions()},
        r"grid or positions must be given, .*got both",
    ),
    "positions of another length": (
        {"relative": "rotation", "positions": GRID.positions()[:14]},
        r"positions must have shape \(15, axes\) or \(2, 15, axes\).*got \(14, 2\)",
    ),
    "positions of another batch": (
        {"relative": "rotation", "positions": GRID.positions().expand(3, -1, -1)},
        r"positions must have shape .*got \(3, 15, 2\)",
    ),
    "positions without axes": (
        {"relative": "rotation", "positions": torch.zeros(15)},
        r"positions must have shape .*got \(15,\)",
    ),
    "positions in a list": (
        {"relative": "rotation", "positions": [[0.0, 1.0]]},
        r"positions must be .*got an object of type list",
    ),
    "a fraction of a prefix": (
        {"num_prefix_tokens": 1.5},
        r"num_prefix_tokens must be a whole number.*got 1.5",
    ),
    "a grid that does not fit, of no use": (
        {"relative": None, "grid": Grid((3, 4))},
        r"must have .* 12.*got 15 tokens",
    ),
    "causality in words": ({"is_causal": "yes"}, r"is_causal must be True or False.*got 'yes'"),
    "positions with NaN": (
        {"relative": "rotation", "positions": NAN_POSITIONS},
        r"positions must be finite, got NaN or infinity",
    ),
    "an unknown kernel": (
        {"kernel": "sofmax"},
        r"kernel must be one of .*got 'sofmax'.*Did you mean 'softmax'\?",
    ),
    "a kernel that is none": ({"kernel": 3}, r"kernel must be a name or an instance.*got 3"),
    "an unknown relative kernel": (
        {"relative": "rotations", "grid": GRID},
        r"relative must be one of .*got 'rotations'.*Did you mean 'rotation'\?",
    ),
    "a relative kernel that is none": (
        {"relative": 3, "grid": GRID},
        r"relative must be None, a name or.*got 3",
    ),
    "an unknown backend": (
        {"backend": "liner"},
        r"backend must be one of .*got 'liner'.*Did you mean 'linear'\?",
    ),
    "a backend that cannot": (
        {"backend": "rings", "relative": "rotation", "grid": GRID, "kernel": "constant"},
        r"backend must be one of 'auto', 'dense', 'toeplitz', 'fft' for this kernel.*got 'rings'",
    ),
    "a mask of another shape": (
        {"key_mask": torch.ones(2, 14, dtype=torch.bool)},
        r"key_mask must have shape \(2, 15\).*got \(2, 14\)",
    ),
    "a mask for each query": (
        {"key_mask": torch.ones(2, 15, 15, dtype=torch.bool)},
        r"key_mask must have shape",
    ),
    "a mask in an array": (
        {"key_mask": np.ones((2, 15), dtype=bool)},
        r"key_mask must be a tensor.*got an object of type ndarray",
    ),
    "a mask of numbers": (
        {"key_mask": torch.ones(2, 15)},
        r"key_mask must be of dtype torch.bool.*got torch.float32",
    ),
    "a negative scale": ({"scale": -1.0}, r"scale must be a positive finite number.*got -1.0"),
    "a scale in words": (
        {"scale": "large"},
        r"scale must be a positive finite number.*got 'large'",
    ),
    "an infinite scale": ({"scale": math.inf}, r"scale must be .*got inf"),
    "a projection of another size": (
        {"kernel": PositiveFeatures(torch.zeros(7, 4))},
        r"projection must have shape \(features, 5\).*got \(7, 4\)",
    ),
    "embeddings of another size": (
        {"relative": ClippedDistanceBias(torch.zeros(4, 6)), "grid": GRID},
        r"relative.distance_embedding must have shape \(rings, 5\).*got \(4, 6\)",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_wrong_inputs_are_errors(fault: str, unchecked_annotations: None):
    changed, message = BAD[fault]
    with pytest.raises(ValueError, match=message):
        call(**changed)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "kernel",
    ["softmax", "squared_relu", "focused", "relu", "elu", "taylor2", "gaussian", "hedgehog"],
)
def test_inputs_of_1e30_do_not_overflow(kernel: str, is_causal: bool):
    for relative, num_tokens in itertools.product((None, "rotary", "window"), (12, 200)):
        options: dict[str, Any] = {"kernel": kernel, "relative": relative, "is_causal": is_causal}
        options["grid"] = Grid(num_tokens)
        inputs = [(1e30 * tensor).float().requires_grad_() for tensor in draw_inputs(num_tokens)]
        expected = attention(*(tensor.double() for tensor in inputs), **options)
        output = attention(*inputs, **options)
        assert (output - expected).abs().max() <= 1e-6 * expected.abs().max(), (
            relative
        )  # the outputs are rounded to float32
        for tensor in torch.autograd.grad(output.mean(), inputs, allow_unused=True):
            assert tensor is None or tensor.isfinite().all(), relative
