import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import JointSinusoidalBias, SinusoidalBias, attention
from teka.functional.positions import Positions
from teka.functional.relative import make_relative_kernel
from teka.functional.relative.rotation import attention_scale_with_sinusoids, initial_frequencies
from tests.contracts.cases import build_relative, draw_inputs, relative_error

Number = st.floats(-3, 3)
Place = st.floats(-50, 50)


def sinusoidal_encoding(position: float, frequency: float) -> Tensor:
    """Return u(x) = [sin ωx, cos ωx]."""
    return torch.tensor(
        [math.sin(frequency * position), math.cos(frequency * position)], dtype=torch.float64
    )


def mixing_matrix(alpha: float, beta: float) -> Tensor:
    """Return W = [[α, β], [−β, α]]."""
    return torch.tensor([[alpha, beta], [-beta, alpha]], dtype=torch.float64)


@given(x=Place, y=Place, shift=Place, frequency=Number, alpha=Number, beta=Number)
def test_lemma_1(x: float, y: float, shift: float, frequency: float, alpha: float, beta: float):
    product, shifted_product = (
        float(
            sinusoidal_encoding(x + by, frequency)
            @ mixing_matrix(alpha, beta)
            @ sinusoidal_encoding(y + by, frequency)
        )
        for by in (0.0, shift)
    )
    assert shifted_product == pytest.approx(product, abs=1e-10)
    numbers = torch.tensor([frequency, alpha, beta, x - y], dtype=torch.float64)
    kernel = SinusoidalBias(numbers[:1], numbers[1].reshape(1, 1, 1), numbers[2].reshape(1, 1, 1))
    assert float(kernel.axis_log_weights(0, numbers[3:])) == pytest.approx(product, abs=1e-10)


@given(x=Place, frequency=Number, alpha=Number, beta=Number)
def test_corrected_signs_of_the_proof(x: float, frequency: float, alpha: float, beta: float):
    sine, cosine = sinusoidal_encoding(x, frequency).tolist()
    expected = torch.tensor(
        [alpha * sine - beta * cosine, beta * sine + alpha * cosine], dtype=torch.float64
    )
    assert torch.allclose(
        sinusoidal_encoding(x, frequency) @ mixing_matrix(alpha, beta), expected, atol=1e-12
    )
    # With vectors as rows the product of the learned matrices is W_q W_kᵀ; the paper's W_qᵀW_k is
    # another matrix.
    generator = torch.Generator().manual_seed(0)
    key_matrix = torch.randn(2, 2, dtype=torch.float64, generator=generator)
    query_matrix = mixing_matrix(alpha, beta) @ torch.linalg.inv(key_matrix).T
    logit = (sinusoidal_encoding(x, frequency) @ query_matrix) @ (
        sinusoidal_encoding(0.3, frequency) @ key_matrix
    )
    assert float(logit) == pytest.approx(
        float(expected @ sinusoidal_encoding(0.3, frequency)), abs=1e-9
    )


def test_lemma_1_needs_the_matrix_form():
    matrix = torch.tensor(
        [[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64
    )  # β with the sign of the paper's second line
    product, shifted_product = (
        float(sinusoidal_encoding(1 + by, 1.0) @ matrix @ sinusoidal_encoding(0.2 + by, 1.0))
        for by in (0.0, 1.0)
    )
    assert abs(product - shifted_product) > 0.1


def test_rotation_equals_formula():
    grid = Grid((2, 3, 2), (1.0, 0.5, 2.0))
    kernel = make_relative_kernel("rotation", heads=3, dim=5, num_axes=3, kernel="softmax")
    assert isinstance(kernel, SinusoidalBias)
    query = draw_inputs(12)[0]
    log_weights = kernel.log_weights(query, grid.offsets(dtype=torch.float64), scale=1.0)
    places = grid.positions(dtype=torch.float64).tolist()
    for head in range(3):
        for i, place in enumerate(places):
            for j, other in enumerate(places):
                total = 0.0
                for axis in range(3):
                    for scale, frequency in enumerate((1.0, 8**-0.5, 8**-1.0, 8**-1.5)):
                        phase = frequency * (place[axis] - other[axis])
                        total += float(kernel.cosine_weight[head, axis, scale]) * math.cos(phase)
                        total += float(kernel.sine_weight[head, axis, scale]) * math.sin(phase)
                assert float(log_weights[0, head, i, j]) == pytest.approx(
                    total / math.sqrt(5 + 2 * 3 * 4), abs=1e-12
                )


def test_logarithm_is_a_sum_over_axes():
    grid = Grid((5, 7), periodic=(True, False))
    kernel = make_relative_kernel("rotation", heads=3, dim=5, num_axes=2, kernel="softmax")
    assert isinstance(kernel, SinusoidalBias)
    dense = kernel.log_weights(draw_inputs(35)[0], grid.offsets(dtype=torch.float64), scale=1.0)[0]
    like = torch.zeros(0, dtype=torch.float64)
    apart = (Positions(grid).pairwise_axis_offsets(axis, like) for axis in (0, 1))
    first, second = (kernel.axis_log_weights(axis, offset) for axis, offset in enumerate(apart))
    summed = first[:, :, None, :, None] + second[:, None, :, None, :]
    assert relative_error(dense, summed.reshape(3, 35, 35)) < 1e-12


def test_offsets_can_differ_between_samples():
    kernel = make_relative_kernel("rotation", heads=3, dim=5, num_axes=2, kernel="softmax")
    assert isinstance(kernel, SinusoidalBias)
    offsets = torch.rand(4, 6, 6, 2, dtype=torch.float64)
    query = draw_inputs(6, batch=4)[0]
    together = kernel.log_weights(query, offsets, scale=1.0)
    assert together.shape == (4, 3, 6, 6)
    assert relative_error(together[1:2], kernel.log_weights(query, offsets[1], scale=1.0)) < 1e-12


def test_initial_values_equal_paper():
    assert initial_frequencies(4).tolist() == pytest.approx([1, 0.3536, 0.125, 0.0442], abs=1e-4)
    assert attention_scale_with_sinusoids(32, 2, 4) == pytest.approx(1 / math.sqrt(48))


@pytest.mark.parametrize(
    ("frequency", "cosine", "sine", "message"),
    [
        ((2, 1), (3, 2, 2), (3, 2, 2), "frequency must have"),
        (
            (2,),
            (3, 2, 4),
            (3, 2, 4),
            r"cosine_weight must have shape \(heads, axes, 2\).*got \(3, 2, 4\)",
        ),
        ((2,), (3, 2), (3, 2), "cosine_weight must have"),
        ((2,), (3, 2, 2), (3, 1, 2), "sine_weight must have"),
    ],
)
def test_invalid_shapes_raise(
    frequency: tuple[int, ...],
    cosine: tuple[int, ...],
    sine: tuple[int, ...],
    message: str,
    unchecked_annotations: None,
):
    with pytest.raises(ValueError, match=message):
        SinusoidalBias(torch.ones(frequency), torch.ones(cosine), torch.ones(sine))


def build(num_axes: int = 2) -> JointSinusoidalBias:
    relative = make_relative_kernel(
        "rotation_joint", heads=3, dim=5, num_axes=num_axes, kernel="softmax"
    )
    assert isinstance(relative, JointSinusoidalBias)
    return relative


def build_exact(num_axes: int = 2) -> SinusoidalBias:
    joint = build(num_axes)
    return SinusoidalBias(joint.frequency, joint.cosine_weight, joint.sine_weight, joint.scale)


def with_prefix_tokens(grid_positions: Positions, num_prefix_tokens: int = 0) -> Positions:
    return replace(grid_positions, num_prefix_tokens=num_prefix_tokens)


def logits(query: Tensor, key: Tensor, placement: Positions, num_axes: int) -> Tensor:
    joined_query, joined_key = build(num_axes).append_sinusoids(query, key, placement, scale=0.4)
    return joined_query @ joined_key.transpose(-2, -1)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_concatenated_inner_product_is_the_logit(shape: tuple[int, ...]):
    grid = Grid(shape, 0.5)
    query, key, _ = draw_inputs(grid.num_tokens)
    expected = 0.4 * query @ key.transpose(-2, -1)
    expected = expected + build_exact(len(shape)).log_weights(
        query, grid.offsets(dtype=torch.float64), scale=0.4
    )
    assert (
        relative_error(
            logits(query, key, with_prefix_tokens(Positions(grid)), len(shape)), expected
        )
        < 1e-12
    )
    by_positions = with_prefix_tokens(Positions(points=grid.positions().expand(2, -1, -1)))
    assert relative_error(logits(query, key, by_positions, len(shape)), expected) < 1e-12


def test_queries_and_keys_at_different_positions():
    places, other = (
        torch.randn(7, 2, dtype=torch.float64),
        torch.randn(2, 5, 2, dtype=torch.float64),
    )
    query, key = draw_inputs(7)[0], draw_inputs(5)[1]
    placement = Positions(points=places, key=Positions(points=other))
    offsets = places[None, :, None] - other[:, None]
    expected = 0.4 * query @ key.transpose(-2, -1) + build_exact().log_weights(
        query, offsets, scale=0.4
    )
    assert relative_error(logits(query, key, placement, 2), expected) < 1e-12


def test_prefix_tokens_have_no_position():
    grid = Grid((3, 5))
    query, key, _ = draw_inputs(2 + 15)
    actual = logits(query, key, with_prefix_tokens(Positions(grid), 2), 2)
    content = 0.4 * query @ key.transpose(-2, -1)
    assert relative_error(actual[:, :, :2], content[:, :, :2]) < 1e-12
    assert relative_error(actual[:, :, :, :2], content[:, :, :, :2]) < 1e-12


def test_rotation_joint_equals_rotation_for_softmax():
    grid = Grid((3, 5))
    query, key, value = draw_inputs(15)
    joint = attention(query, key, value, relative=build(), grid=grid, scale=0.4)
    exact = attention(query, key, value, relative=build_exact(), grid=grid, scale=0.4)
    assert relative_error(joint, exact) < 1e-12


def test_rotation_joint_default_scale():
    grid = Grid((3, 5))
    query, key, value = draw_inputs(15)
    assert build().num_position_features == 16
    by_default = attention(query, key, value, relative=build(), grid=grid)
    assert torch.equal(
        by_default, attention(query, key, value, relative=build(), grid=grid, scale=21**-0.5)
    )


@pytest.mark.parametrize("kernel", ["squared_relu", "constant"])
def test_kernels_that_do_not_estimate_softmax_raise(kernel: str):
    query, key, value = draw_inputs(15)
    with pytest.raises(
        ValueError, match=rf"kernel must be softmax or random features of it.*got '{kernel}'"
    ):
        attention(query, key, value, kernel=kernel, relative="rotation_joint", grid=Grid((3, 5)))


def test_periodic_axis_raises():
    placement = with_prefix_tokens(Positions(Grid((3, 5), periodic=(False, True))))
    with pytest.raises(ValueError, match="no periodic axis with relative='rotation_joint'"):
        build().adapt_to_positions(placement)
    assert isinstance(
        build().adapt_to_positions(with_prefix_tokens(Positions(Grid((3, 5))))), JointSinusoidalBias
    )


def test_rotation_joint_is_equivariant_in_expectation():
    assert JointSinusoidalBias.equivariance == "in expectation"
    assert SinusoidalBias.equivariance == "exact"


def rotation(num_axes: int) -> SinusoidalBias:
    relative = build_relative("rotation", heads=3, dim=5, num_axes=num_axes)
    assert isinstance(relative, SinusoidalBias)
    return relative


@pytest.mark.parametrize("shape", [(11,), (3, 5), (2, 3, 4)])
def test_softmax_vectors_give_the_logits(shape: tuple[int, ...]):
    grid_positions = Positions(Grid(shape, spacing=0.7, origin=-3.0))
    num_tokens = grid_positions.num_queries_with_position
    assert num_tokens is not None
    query, key, _ = draw_inputs(num_tokens + 2)
    placement = replace(grid_positions, num_prefix_tokens=2)
    relative = rotation(len(shape))
    left, right = relative.append_sinusoids(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT
    placed = query[:, :, 2:]
    expected[:, :, 2:, 2:] += relative.log_weights(
        placed, placement.pairwise_offsets(placed), scale=0.4
    )
    assert relative_error(left @ right.mT, expected) < 1e-13


def test_softmax_vectors_with_positions_per_sample():
    query, key, _ = draw_inputs(11)
    key = key[:, :, :7]
    at_query, at_key = (torch.randn(2, size, 3, dtype=torch.float64) for size in (11, 7))
    placement = Positions(points=at_query, key=Positions(points=at_key))
    relative = rotation(3)
    left, right = relative.append_sinusoids(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT + relative.log_weights(
        query, placement.pairwise_offsets(query), scale=0.4
    )
    assert relative_error(left @ right.mT, expected) < 1e-13


def test_softmax_vectors_are_accurate_at_large_coordinates():
    grid_positions = Positions(Grid((5, 7), origin=1e6))
    query, key, _ = draw_inputs(35, dtype=torch.float32)
    placement, relative = grid_positions, rotation(2)
    left, right = relative.append_sinusoids(query, key, placement, scale=0.4)
    expected = 0.4 * query @ key.mT + relative.log_weights(
        query, placement.pairwise_offsets(query), scale=0.4
    )
    assert relative_error(left @ right.mT, expected) < 3e-6
