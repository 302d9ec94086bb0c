import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import Constant, FeatureKernel, Rotary, Softmax, SquaredRelu, attention
from teka.functional.kernels import make_content_kernel
from teka.functional.positions import Positions
from teka.functional.relative import rotary
from teka.functional.relative.rotary import LEAST_WEIGHT, ROTARY_NORMALIZERS
from tests.contracts.cases import draw_inputs, relative_error


def build(num_axes: int = 2) -> Rotary:
    return Rotary.make_random_example(
        torch.Generator().manual_seed(1), heads=3, dim=5, num_axes=num_axes, kernel="softmax"
    )


def draw_points(*size: int) -> Tensor:
    return 3 * torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def inner_products(relative: Rotary, positions: Tensor) -> Tensor:
    query, key, _ = draw_inputs(positions.shape[-2], batch=4, dtype=positions.dtype)
    return relative.rotate(query, positions) @ relative.rotate(key, positions).transpose(-2, -1)


def test_log_kernel_equals_formula():
    relative, positions, features = build(), draw_points(7, 2), draw_inputs(7)[0]
    actual = relative.rotate(features, positions)
    for head in range(3):
        for token, (down, right) in enumerate(positions.tolist()):
            for pair in range(2):
                omega = relative.frequency[head, pair].tolist()
                angle = omega[0] * down + omega[1] * right
                first, second = features[1, head, token, 2 * pair : 2 * pair + 2].tolist()
                rotated = actual[1, head, token, 2 * pair : 2 * pair + 2].tolist()
                assert rotated[0] == pytest.approx(
                    first * math.cos(angle) - second * math.sin(angle), abs=1e-12
                )
                assert rotated[1] == pytest.approx(
                    first * math.sin(angle) + second * math.cos(angle), abs=1e-12
                )
    assert torch.equal(actual[..., 4], features[..., 4])


def test_rotation_is_identity_at_origin_and_keeps_length():
    features = draw_inputs(7)[0]
    assert torch.equal(build().rotate(features, torch.zeros(7, 2, dtype=torch.float64)), features)
    assert (
        relative_error(
            build().rotate(features, draw_points(7, 2)).norm(dim=-1), features.norm(dim=-1)
        )
        < 1e-12
    )


@pytest.mark.parametrize("num_axes", [1, 2, 3])
@given(shift=st.floats(-1e3, 1e3))
def test_inner_products_depend_on_offsets_only(num_axes: int, shift: float):
    relative, positions = build(num_axes), draw_points(4, 7, num_axes)
    assert (
        relative_error(
            inner_products(relative, positions + shift), inner_products(relative, positions)
        )
        < 1e-11
    )


def test_positions_can_differ_between_samples():
    relative, positions, features = build(), draw_points(2, 7, 2), draw_inputs(7)[0]
    together = relative.rotate(features, positions)
    assert relative_error(together[1:], relative.rotate(features[1:], positions[1])) < 1e-12


@pytest.mark.parametrize("shift", [1e3, 2.0**20])
def test_float32_is_accurate_at_large_coordinates(shift: float):
    positions = Grid((5, 7), 0.5).positions(dtype=torch.float32)
    actual = inner_products(build(), positions + shift)
    assert actual.dtype == torch.float32
    assert relative_error(actual, inner_products(build(), positions.double()).float()) < 1e-5


@given(turns=st.tuples(st.integers(-3, 3), st.integers(-3, 3)), spacing=st.floats(0.2, 3))
def test_kernel_is_periodic_on_a_torus(turns: tuple[int, int], spacing: float):
    grid_positions = Positions(Grid((5, 7), spacing, periodic=True))
    relative, positions, features = (
        build().adapt_to_positions(grid_positions),
        draw_points(7, 2),
        draw_inputs(7)[0],
    )
    moved = positions + spacing * torch.tensor(
        [5.0 * turns[0], 7.0 * turns[1]], dtype=torch.float64
    )
    assert (
        relative_error(relative.rotate(features, moved), relative.rotate(features, positions))
        < 1e-10
    )


def test_rotate_strided_single_token():
    relative, positions, features = build(), draw_points(7, 2), draw_inputs(7)[0]
    alone = relative.rotate(features[:1, :, 3:4], positions[3:4])
    assert relative_error(alone, relative.rotate(features, positions)[:1, :, 3:4]) < 1e-12


def test_compiled_form_is_equal(monkeypatch: pytest.MonkeyPatch):
    relative, positions, features = build(), draw_points(7, 2), draw_inputs(7)[0]
    rotated = relative.rotate(features, positions)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert relative_error(relative.rotate(features, positions), rotated) < 1e-12


def denominator_vectors(relative: Rotary, features: Tensor) -> Tensor:
    vectors = relative.add_positions_to_features(
        features, Positions(points=draw_points(7, 2)), is_key=False
    )
    return vectors.concatenate_denominator_features()


def test_denominator_vectors_are_features_or_lengths_or_both():
    features, frequency = draw_inputs(7)[0], build().frequency
    assert torch.equal(denominator_vectors(Rotary(frequency, "features"), features), features)
    lengths = denominator_vectors(Rotary(frequency, "lengths"), features)
    assert lengths.shape == (2, 3, 7, 3)
    for token in range(7):
        values = features[1, 2, token].tolist()
        expected = [
            math.sqrt(values[0] ** 2 + values[1] ** 2),
            math.sqrt(values[2] ** 2 + values[3] ** 2),
            abs(values[4]),
        ]
        assert lengths[1, 2, token].tolist() == pytest.approx(expected, rel=1e-14)
    mixed = denominator_vectors(Rotary(frequency, "mixed", 0.19), features)
    expected = torch.cat([0.9 * features, math.sqrt(0.19) * lengths], dim=-1)
    assert relative_error(mixed, expected) < 1e-14
    assert torch.equal(denominator_vectors(Rotary(frequency, "mixed", 1.0), features), lengths)


@pytest.mark.parametrize("normalizer", ["mixed", "lengths", "features"])
def test_sums_without_positions_equal_sums_of_features(normalizer: str):
    query, key, value = draw_inputs(7)
    sums = Rotary(build().frequency, normalizer).sums_without_positions(query, key, value)
    weights = query @ key.mT
    assert relative_error(sums.numerator, weights @ value) < 1e-12
    assert relative_error(sums.denominator, weights.sum(dim=-1)) < 1e-12


def test_nonnegative_weights_are_half_the_lengths_and_half_the_rotated_features():
    relative = Rotary(build().frequency, "nonnegative")
    query, key, value = draw_inputs(7)
    positions = Positions(points=draw_points(7, 2))
    query_vectors = relative.add_positions_to_features(query, positions, is_key=False)
    key_vectors = relative.add_positions_to_features(key, positions, is_key=True)
    assert query_vectors.denominator == key_vectors.denominator == ()
    weights = query_vectors.numerator @ key_vectors.numerator.mT
    lengths = relative.pair_lengths(query) @ relative.pair_lengths(key).mT
    rotated = relative.rotate(query, draw_points(7, 2)) @ relative.rotate(key, draw_points(7, 2)).mT
    assert relative_error(weights, ((1 + LEAST_WEIGHT) * lengths + rotated) / 2) < 1e-14
    assert (weights >= 0).all()
    sums = relative.sums_without_positions(query, key, value)
    expected = ((1 + LEAST_WEIGHT) * lengths + query @ key.mT) / 2
    assert relative_error(sums.numerator, expected @ value) < 1e-14
    assert relative_error(sums.denominator, expected.sum(dim=-1)) < 1e-14


def test_a_rotation_does_not_change_lengths():
    relative, features = build(), draw_inputs(7)[0]
    rotated = relative.rotate(features, draw_points(7, 2))
    assert relative_error(relative.pair_lengths(rotated), relative.pair_lengths(features)) < 1e-14


def test_signed_kernels_use_lengths():
    relative = build()
    assert relative.adapt_to_kernel(SquaredRelu()) is relative
    signed = make_content_kernel("trigonometric", 5)
    assert relative.adapt_to_kernel(signed).normalizer == "lengths"


@pytest.fixture(params=[False, True], ids=["as it is", "recorded"])
def lengths(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Tensor], Tensor]:
    """Return the pair lengths, computed with complex numbers or as in a compiled graph."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: request.param)
    return Rotary(torch.ones(1, 3, 1)).pair_lengths


@pytest.mark.parametrize("smallest", [1.0, 1e-30])
def test_length_gradients(lengths: Callable[[Tensor], Tensor], smallest: float):
    features = torch.tensor([3.0, -4.0, 0.0, 0.0, 0.0, 2.0])
    features = (smallest * features).reshape(1, 1, 1, 6).requires_grad_()
    actual = lengths(features)
    assert torch.allclose(actual / smallest, torch.tensor([5.0, 0.0, 2.0]))
    (gradient,) = torch.autograd.grad(actual.sum(), features)
    assert torch.allclose(gradient, torch.tensor([0.6, -0.8, 0.0, 0.0, 0.0, 1.0]))
    assert lengths(torch.zeros_like(features)).count_nonzero() == 0


def test_lengths_are_twice_differentiable():
    features = draw_inputs(2, batch=1, heads=1, dim=4)[0].requires_grad_()
    assert torch.autograd.gradgradcheck(
        Rotary(torch.ones(1, 2, 1)).pair_lengths, features, fast_mode=True
    )


@pytest.mark.parametrize("normalizer", ROTARY_NORMALIZERS)
@pytest.mark.parametrize("recorded", [False, True])
def test_halves_equal_adjacent_pairs_in_another_order(
    normalizer: str, recorded: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: recorded)
    order, frequency = torch.tensor([0, 2, 1, 3, 4]), build().frequency
    inputs = [tensor.requires_grad_() for tensor in (*draw_inputs(7), frequency)]
    adjacent, halves = (
        Rotary(frequency, normalizer, pairing=pairing) for pairing in rotary.PAIRINGS
    )
    place = {"positions": draw_points(7, 2), "kernel": "squared_relu"}
    outputs = (
        attention(inputs[0], inputs[1], inputs[2], relative=adjacent, **place),
        attention(
            inputs[0][..., order], inputs[1][..., order], inputs[2], relative=halves, **place
        ),
    )
    gradients = (torch.autograd.grad(output.square().sum(), inputs) for output in outputs)
    assert relative_error(*outputs) < 1e-12
    assert all(relative_error(left, right) < 1e-12 for left, right in zip(*gradients, strict=True))


@pytest.mark.parametrize("periodic", [False, True])
def test_frequencies_have_gradients(periodic: bool):
    frequency, grid_positions = (
        build().frequency.requires_grad_(),
        Positions(Grid((5, 7), periodic=periodic)),
    )
    inner_products(
        Rotary(frequency).adapt_to_positions(grid_positions), draw_points(7, 2)
    ).square().sum().backward()
    assert frequency.grad is not None
    assert torch.count_nonzero(frequency.grad) == (0 if periodic else frequency.numel())


@pytest.mark.parametrize("kernel", ["softmax", "squared_relu", "taylor2", "positive"])
def test_rotary_by_name_rotates_all_features(kernel: str):
    relative = Rotary.make_random_example(
        torch.Generator(), heads=3, dim=5, num_axes=2, kernel=kernel
    )
    content_kernel = make_content_kernel(kernel, 5)
    relative.check_kernel_and_positions(heads=3, dim=5, num_axes=2, kernel=content_kernel)
    size = content_kernel.num_features(5) if isinstance(content_kernel, FeatureKernel) else 5
    assert relative.frequency.shape == (3, size // 2, 2)


@pytest.mark.parametrize("size", [(3, 2), (3, 0, 2)])
def test_frequencies_of_invalid_shape_raise(size: tuple[int, ...], unchecked_annotations: None):
    with pytest.raises(ValueError, match=r"frequency must have shape \(heads, pairs, axes\)"):
        Rotary(torch.ones(size))


@pytest.mark.parametrize("kernel", [Softmax(), SquaredRelu()])
def test_more_pairs_than_features_raise(kernel: Softmax | SquaredRelu):
    with pytest.raises(ValueError, match="at most 1 pairs for the 3 features of kernel="):
        build().check_kernel_and_positions(heads=3, dim=3, num_axes=2, kernel=kernel)


def test_kernel_with_one_feature_raises():
    with pytest.raises(
        ValueError, match=r"kernel must be a kernel of at least 2 features.*got 'constant'"
    ):
        build().check_kernel_and_positions(heads=3, dim=5, num_axes=2, kernel=Constant())
    with pytest.raises(ValueError, match=r"kernel must be .*got 'constant'"):
        Rotary.make_random_example(torch.Generator(), heads=3, dim=5, num_axes=2, kernel="constant")


def test_invalid_normalizer_and_length_share_raise():
    with pytest.raises(
        ValueError, match=r"normalizer must be .*got 'length'.*Did you mean 'lengths'"
    ):
        Rotary(torch.ones(3, 2, 2), "length")
    for share in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"length_share must be above 0 and at most 1"):
            Rotary(torch.ones(3, 2, 2), length_share=share)
