import torch

from teka.functional.backend import Sums


def sums(seed: int, log_peak: float | None) -> Sums:
    generator = torch.Generator().manual_seed(seed)
    numerator = torch.rand(2, 3, 5, 4, dtype=torch.float64, generator=generator)
    denominator = torch.rand(2, 3, 5, dtype=torch.float64, generator=generator)
    return Sums(numerator, denominator, None if log_peak is None else torch.full((1, 3, 5), log_peak).double())


def test_sums_over_two_sets_of_keys_add_whatever_was_taken_out_of_each():
    for peaks in ((None, None), (2.0, None), (None, -3.0), (2.0, -3.0)):
        one, other = (sums(seed, peak) for seed, peak in enumerate(peaks))
        factors = [torch.tensor(0.0 if peak is None else peak).double().exp() for peak in peaks]
        expected = (one.numerator * factors[0] + other.numerator * factors[1]) / (
            one.denominator * factors[0] + other.denominator * factors[1]
        )[..., None]
        assert torch.allclose((one + other).divide(nonnegative=True), expected, rtol=1e-12)


def test_peaks_beyond_the_range_of_exp_add_without_overflow():
    total = sums(0, 1e4) + sums(1, -1e4)
    assert torch.allclose(total.divide(nonnegative=True), sums(0, 1e4).divide(nonnegative=True))


def test_a_row_without_weight_is_zero_where_no_weight_is_negative():
    empty = Sums(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2))
    assert torch.equal(empty.divide(nonnegative=True), torch.zeros(1, 1, 2, 3))
