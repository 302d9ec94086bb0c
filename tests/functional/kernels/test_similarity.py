"""Non-local similarities, as their paper writes them: pair by pair."""

import torch
from torch import Tensor

from teka import Grid
from teka.functional import Decay, Fourier, attention
from tests.contracts.cases import draw_inputs, relative_error

SCALE = 0.4
QUERY, KEY, VALUE = draw_inputs(11)


def weighted_mean(weights: Tensor, denominator: Tensor) -> Tensor:
    return weights @ VALUE / denominator


def test_sums_are_divided_by_the_number_of_keys():
    sums = QUERY.sum(-1)[..., :, None] + KEY.sum(-1)[..., None, :]
    for kernel, weights in {
        "dot_product": QUERY @ KEY.mT,
        "concatenation": sums.clamp_min(0),
    }.items():
        for is_causal in (False, True):
            seen = (
                torch.ones(11, 11, dtype=torch.float64).tril()
                if is_causal
                else torch.ones(11, 11).double()
            )
            expected = weighted_mean(SCALE * weights * seen, seen.sum(-1, keepdim=True))
            actual = attention(QUERY, KEY, VALUE, kernel=kernel, scale=SCALE, is_causal=is_causal)
            assert relative_error(actual, expected) < 1e-12, (kernel, is_causal)


def test_keys_are_counted_with_the_relative_kernel():
    relative, mask = (
        Decay(torch.full((3, 1), 0.3, dtype=torch.float64)),
        torch.arange(11).expand(2, -1) > 2,
    )
    offsets = (torch.arange(11)[:, None] - torch.arange(11)).abs().double()
    shares = torch.exp(-0.3 * offsets) * mask[0]
    expected = weighted_mean(SCALE * QUERY @ KEY.mT * shares, shares.sum(-1, keepdim=True))
    for backend in ("dense", "linear", "toeplitz", "fft"):
        options = {
            "kernel": "dot_product",
            "relative": relative,
            "grid": Grid(11),
            "scale": SCALE,
            "key_mask": mask,
        }
        assert (
            relative_error(attention(QUERY, KEY, VALUE, **options, backend=backend), expected)
            < 1e-12
        ), backend


def test_constant_factor_of_c_cancels():
    relative = Fourier.make_random_example(
        torch.Generator().manual_seed(0), heads=3, dim=5, num_axes=1, kernel="dot_product"
    )
    tenfold = Fourier(
        10 * relative.constant_weight, 10 * relative.amplitude, relative.frequency, relative.phase
    )
    for kernel in ("dot_product", "concatenation", "gaussian"):
        first, second = (
            attention(QUERY, KEY, VALUE, kernel=kernel, relative=c, grid=Grid(11))
            for c in (relative, tenfold)
        )
        assert relative_error(first, second) < 1e-12, kernel


def test_gaussian_weights_equal_formula():
    weights = torch.exp(-SCALE / 2 * torch.cdist(QUERY, KEY).square())
    expected = weighted_mean(weights, weights.sum(-1, keepdim=True))
    assert (
        relative_error(attention(QUERY, KEY, VALUE, kernel="gaussian", scale=SCALE), expected)
        < 1e-12
    )
    moved = attention(QUERY + 3, KEY + 3, VALUE, kernel="gaussian", scale=SCALE)
    assert relative_error(moved, expected) < 1e-10
