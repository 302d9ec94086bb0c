import torch
from torch import Tensor

from teka import Grid
from teka.functional import QuadraticBias, Shaw, attention
from teka.functional.backends.attention_sums import (
    LinearAttentionInputs,
    WeightedSums,
    add_prefix_tokens,
)
from teka.functional.backends.feature_chunks import run_checkpointed
from teka.functional.backends.linear import attention_sums_without_positions
from tests.contracts.cases import draw_inputs, relative_error


def random_sums(seed: int, log_peak: float | None) -> WeightedSums:
    generator = torch.Generator().manual_seed(seed)
    numerator = torch.rand(2, 3, 5, 4, dtype=torch.float64, generator=generator)
    denominator = torch.rand(2, 3, 5, dtype=torch.float64, generator=generator)
    return WeightedSums(
        numerator,
        denominator,
        None if log_peak is None else torch.full((1, 3, 5), log_peak).double(),
    )


def test_sums_with_different_peaks_are_added():
    for peaks in ((None, None), (2.0, None), (None, -3.0), (2.0, -3.0)):
        first, second = (random_sums(seed, peak) for seed, peak in enumerate(peaks))
        factors = [torch.tensor(0.0 if peak is None else peak).double().exp() for peak in peaks]
        expected = (first.numerator * factors[0] + second.numerator * factors[1]) / (
            first.denominator * factors[0] + second.denominator * factors[1]
        )[..., None]
        assert torch.allclose((first + second).normalize(nonnegative=True), expected, rtol=1e-12)


def test_sums_with_peaks_beyond_the_range_of_exp_are_added():
    total = random_sums(0, 1e4) + random_sums(1, -1e4)
    assert torch.allclose(
        total.normalize(nonnegative=True), random_sums(0, 1e4).normalize(nonnegative=True)
    )


def test_normalize_returns_0_for_rows_without_weight():
    empty = WeightedSums(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2))
    assert torch.equal(empty.normalize(nonnegative=True), torch.zeros(1, 1, 2, 3))


def test_rings_without_kept_keys_do_not_change_other_sums():
    query, key, value = draw_inputs(13, dim=8)
    keep = torch.arange(13).expand(2, -1) >= 7
    shaw = Shaw(torch.randn(1, 5, 8, dtype=torch.float64))
    far = QuadraticBias(torch.full((3, 1), 40.0).double(), torch.full((3,), 0.3).double())
    for relative, first, backend in ((shaw, 0, "rings"), (far, 1, "toeplitz"), (far, 2, "fft")):
        placement = {
            "relative": relative,
            "grid": Grid(13 - first),
            "num_prefix_tokens": first,
            "key_mask": keep,
        }
        options = {"kernel": "squared_relu", **placement}
        found = [
            attention(1000 * query, key, value, **options, backend=name)
            for name in ("dense", backend)
        ]
        assert relative_error(found[1], found[0]) <= 1e-10, relative.name


def linear_sums(query: Tensor, key: Tensor, value: Tensor) -> WeightedSums:
    return attention_sums_without_positions(LinearAttentionInputs(query, query, key, value))


def test_prefix_tokens_are_added_as_linear_attention_over_all_tokens():
    query, key, value = (tensor.abs() for tensor in draw_inputs(11))
    placed = linear_sums(query[:, :, 2:], key[:, :, 2:], value[:, :, 2:])
    tokens = LinearAttentionInputs(query, query, key, value)
    found, expected = (
        add_prefix_tokens(placed, tokens, 2, linear_sums),
        linear_sums(query, key, value),
    )
    assert (
        relative_error(found.normalize(nonnegative=True), expected.normalize(nonnegative=True))
        < 1e-14
    )


def test_no_prefix_tokens_return_the_same_sums():
    query, key, value = draw_inputs(5)
    placed = linear_sums(query, key, value)
    assert (
        add_prefix_tokens(placed, LinearAttentionInputs(query, query, key, value), 0, linear_sums)
        is placed
    )


def test_run_checkpointed_runs_twice_only_for_gradients():
    calls = []

    def square(vector: Tensor) -> Tensor:
        calls.append(len(vector))
        return vector.square()

    vector = torch.arange(3.0, requires_grad=True)
    run_checkpointed(square, vector).sum().backward()
    assert torch.equal(vector.grad, 2 * vector.detach())  # pyright: ignore[reportArgumentType]
    assert len(calls) == 2
    with torch.no_grad():
        run_checkpointed(square, vector)
    assert len(calls) == 3


def test_run_checkpointed_supports_torch_func():
    vector = torch.arange(3.0)
    gradient = torch.func.grad(lambda tensor: run_checkpointed(torch.square, tensor).sum())(vector)
    assert torch.equal(gradient, 2 * vector)


def test_replace_denominator_uses_the_peaks_of_both_sums():
    above, below = random_sums(0, 3.0), random_sums(1, -1.0)
    expected = above.numerator * torch.tensor(4.0).double().exp() / below.denominator[..., None]
    assert torch.allclose(
        above.replace_denominator(below).normalize(nonnegative=True), expected, rtol=1e-12
    )
