"""Kernels of distance: the papers' formulae, and what their linear form must survive."""

import math

import pytest
import torch

from teka import Grid
from teka.functional import Alibi, Decay, Kerple, T5Bias, attention
from tests.contracts.cases import draw_inputs, relative_error

OFFSETS = torch.arange(-300, 301).double()


def t5_bucket(relative_position: int, num_buckets: int = 32, max_distance: int = 128) -> int:
    """Return the bucket of a key minus its query, as in Raffel et al.'s code for both directions.

    Far buckets grow with the logarithm of the distance. A rounded logarithm can fall on the wrong
    side of a border, so powers are compared instead, which are exact at the borders.
    """
    half = num_buckets // 2
    exact = half // 2
    first = half if relative_position > 0 else 0
    distance = abs(relative_position)
    if distance < exact:
        return first + distance
    reached = (distance / exact) ** (half - exact)
    return (
        first
        + exact
        + max(step for step in range(half - exact) if reached >= (max_distance / exact) ** step)
    )


def test_t5_buckets_equal_original():
    kernel = T5Bias(torch.zeros(1, 1, 32))
    assert kernel.compute_bucket_indices(OFFSETS).tolist() == [
        t5_bucket(-int(offset)) for offset in OFFSETS
    ]


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [(8, [1, 2, 3, 4, 5, 6, 7, 8]), (1, [8]), (6, [2, 4, 6, 8, 1, 3]), (3, [4, 8, 2])],
)
def test_alibi_slopes_equal_original(heads: int, exponents: list[float]):
    assert torch.equal(
        Alibi.with_initial_parameters(heads=heads).slope,
        2.0 ** -torch.tensor(exponents, dtype=torch.float32),
    )


def test_alibi_equals_decay():
    inputs, slope = draw_inputs(15), torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64)
    outputs = [
        attention(*inputs, relative=relative, grid=Grid((3, 5)))
        for relative in (Alibi(slope), Decay(slope[:, None].repeat(1, 2)))
    ]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("form", ["logarithmic", "power"])
def test_kerple_is_positive_definite(form: str):
    weight, bend = (
        torch.tensor([[0.7, 1.5], [2.0, 0.3]]).double(),
        torch.tensor([[1.1, 0.4], [0.2, 2.0]]).double(),
    )
    points = 5 * torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = Kerple(weight, bend, form).log_weight_at(points[:, None] - points).exp()
    assert (torch.linalg.eigvalsh(matrix) > -1e-10).all()
    by_hand = torch.log1p(bend[1, 0] * 3) if form == "logarithmic" else 3 ** bend[1, 0]
    alone = Kerple(weight, bend, form).log_weight_at(torch.tensor([[3.0, 0.0]]).double())[1, 0]
    torch.testing.assert_close(alone, -weight[1, 0] * by_hand)


def test_kerple_power_gradient_at_zero():
    weight, bend = (torch.ones(1, 1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    Kerple(weight, bend, "power").log_weight_at(
        torch.tensor([[0.0], [2.0]]).double()
    ).sum().backward()
    for parameter in (weight, bend):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_causal_decay_equals_retnet_recurrence():
    query, key, value = draw_inputs(300)
    rate = torch.tensor([[0.1], [0.9], [3.0]], dtype=torch.float64)
    chunked = attention(
        query, key, value, kernel="elu", relative=Decay(rate), grid=Grid(300), is_causal=True
    )
    features = [
        torch.where(vectors > 0, 1 + vectors, vectors.exp())
        for vectors in (query * 5**-0.25, key * 5**-0.25)
    ]
    state = torch.zeros(2, 3, 5, 5, dtype=torch.float64)
    outputs = []
    for token in range(300):
        update = (
            features[1][:, :, token, :, None]
            * torch.cat([value, torch.ones_like(value[..., :1])], -1)[:, :, token, None]
        )
        state = torch.exp(-rate)[:, :, None] * state + update
        above = (features[0][:, :, token, None] @ state)[..., 0, :]
        outputs.append(above[..., :-1] / above[..., -1:])
    assert relative_error(chunked, torch.stack(outputs, dim=2)) < 1e-12


@pytest.mark.parametrize(
    ("shape", "is_causal"), [((200,), False), ((200,), True), ((3, 70), False)]
)
def test_masked_near_keys(shape: tuple[int, ...], is_causal: bool):
    # exp(−2 · 100) is no float32.
    grid, far = Grid(shape), torch.zeros(2, math.prod(shape), dtype=torch.bool)
    far[:, 0] = True
    inputs = [tensor.float() for tensor in draw_inputs(grid.num_tokens)]
    relative = Decay(torch.full((3, grid.num_axes), 2.0))
    options = {
        "relative": relative,
        "grid": grid,
        "key_mask": far,
        "is_causal": is_causal,
        "backend": "linear",
    }
    for kernel in (
        "squared_relu",
        "elu",
    ):  # one whose keys have exponents of their own, and one without
        output = attention(*inputs, kernel=kernel, **options)
        assert relative_error(output, inputs[2][:, :, :1].expand_as(output)) < 1e-5, kernel


def test_decay_is_accurate_for_long_sequences():
    # Were exponents those of the place in the sequence, 3 · 20,000 would leave two digits of a
    # float32.
    query, key, value = (tensor.float() for tensor in draw_inputs(20_000, batch=1, heads=1))
    relative, window = Decay(torch.full((1, 1), 3.0)), slice(19_900, 20_000)
    for is_causal in (False, True):
        options = {"kernel": "squared_relu", "relative": relative, "is_causal": is_causal}
        whole = attention(query, key, value, **options, grid=Grid(20_000), backend="linear")[
            :, :, -50:
        ]
        part = [tensor[:, :, window].double() for tensor in (query, key, value)]
        reference = attention(*part, **options, grid=Grid(100), backend="dense")[:, :, -50:]
        assert relative_error(whole.double(), reference) < 3e-5
