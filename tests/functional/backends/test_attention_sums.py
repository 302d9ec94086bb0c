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


def sums(seed: int, log_peak: float | None) -> WeightedSums:
    generator = torch.Generator().manual_seed(seed)
    numerator = torch.rand(2, 3, 5, 4, dtype=torch.float64, generator=generator)
    denominator = torch.rand(2, 3, 5, dtype=torch.float64, generator=generator)
    return WeightedSums(
        numerator,
        denominator,
        None if log_peak is None else torch.full((1, 3, 5), log_peak).double(),
    )


def test_sums_over_two_sets_of_keys_add_whatever_was_taken_out_of_each():
    for peaks in ((None, None), (2.0, None), (None, -3.0), (2.0, -3.0)):
        one, other = (sums(seed, peak) for seed, peak in enumerate(peaks))
        factors = [torch.tensor(0.0 if peak is None else peak).double().exp() for peak in peaks]
        expected = (one.numerator * factors[0] + other.numerator * factors[1]) / (
            one.denominator * factors[0] + other.denominator * factors[1]
        )[..., None]
        assert torch.allclose((one + other).normalize(nonnegative=True), expected, rtol=1e-12)


def test_peaks_beyond_the_range_of_exp_add_without_overflow():
    total = sums(0, 1e4) + sums(1, -1e4)
    assert torch.allclose(
        total.normalize(nonnegative=True), sums(0, 1e4).normalize(nonnegative=True)
    )


def test_a_row_without_weight_is_zero_where_no_weight_is_negative():
    empty = WeightedSums(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2))
    assert torch.equal(empty.normalize(nonnegative=True), torch.zeros(1, 1, 2, 3))


def test_where_no_key_counts_nothing_is_taken_from_other_sums():
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
            attention(1000 * query, key, value, **options, backend=one)
            for one in ("dense", backend)
        ]
        assert relative_error(found[1], found[0]) <= 1e-10, relative.name


def linear(query: Tensor, key: Tensor, value: Tensor) -> WeightedSums:
    return attention_sums_without_positions(LinearAttentionInputs(query, query, key, value))


def test_with_a_kernel_of_one_it_is_linear_attention_over_all_tokens():
    query, key, value = (tensor.abs() for tensor in draw_inputs(11))
    placed = linear(query[:, :, 2:], key[:, :, 2:], value[:, :, 2:])
    tokens = LinearAttentionInputs(query, query, key, value)
    found, expected = add_prefix_tokens(placed, tokens, 2, linear), linear(query, key, value)
    assert (
        relative_error(found.normalize(nonnegative=True), expected.normalize(nonnegative=True))
        < 1e-14
    )


def test_without_such_tokens_nothing_is_added():
    query, key, value = draw_inputs(5)
    placed = linear(query, key, value)
    assert (
        add_prefix_tokens(placed, LinearAttentionInputs(query, query, key, value), 0, linear)
        is placed
    )


def test_it_runs_a_second_time_for_a_gradient_and_once_without():
    calls = []

    def square(numbers: Tensor) -> Tensor:
        calls.append(len(numbers))
        return numbers.square()

    numbers = torch.arange(3.0, requires_grad=True)
    run_checkpointed(square, numbers).sum().backward()
    assert torch.equal(numbers.grad, 2 * numbers.detach())  # pyright: ignore[reportArgumentType]
    assert len(calls) == 2
    with torch.no_grad():
        run_checkpointed(square, numbers)
    assert len(calls) == 3


def test_transforms_of_torch_func_go_through():
    numbers = torch.arange(3.0)
    gradient = torch.func.grad(lambda one: run_checkpointed(torch.square, one).sum())(numbers)
    assert torch.equal(gradient, 2 * numbers)


def test_a_mean_over_the_count_of_keys_takes_both_peaks_into_account():
    above, below = sums(0, 3.0), sums(1, -1.0)
    expected = above.numerator * torch.tensor(4.0).double().exp() / below.denominator[..., None]
    assert torch.allclose(
        above.replace_denominator(below).normalize(nonnegative=True), expected, rtol=1e-12
    )
