import pytest
import torch
from tests.contracts.cases import build_kernel, draw_inputs
from torch import Generator

from teka import Grid
from teka.functional import Constant, Positive, attention, draw_projection
from teka.functional.attention import COLLAPSED_SPREAD, EstimatorReport, estimator_report
from teka.functional.relative import make_relative


def build_positive(num_features: int, dim: int = 5) -> Positive:
    return Positive(draw_projection(num_features, dim, generator=Generator().manual_seed(0)))


def test_its_numbers_are_those_of_the_definitions():
    query, key, value = draw_inputs(11)
    kernel = build_positive(7)
    report = estimator_report(query, key, value, kernel)
    exact, estimate = attention(query, key, value), attention(query, key, value, kernel=kernel)
    mean = value.mean(dim=2, keepdim=True)
    assert report.error == pytest.approx(float((estimate - exact).norm() / exact.norm()))
    assert report.error_of_mean == pytest.approx(float((mean - exact).norm() / exact.norm()))
    assert report.spread == pytest.approx(float((estimate - mean).norm() / (exact - mean).norm()))


def test_more_features_err_less_and_spread_as_the_truth_does():
    query, key, value = draw_inputs(11)
    few, many = (estimator_report(query, key, value, build_positive(num)) for num in (8, 8192))
    assert many.error < few.error / 4
    assert many.spread == pytest.approx(1, abs=0.1)
    assert not many.collapsed


def test_the_mean_of_the_values_is_a_collapse():
    query, key, value = draw_inputs(11)
    report = estimator_report(query, key, value, Constant())
    assert report.spread == pytest.approx(0, abs=1e-12)
    assert report.error == pytest.approx(report.error_of_mean)
    assert report.collapsed


@pytest.mark.parametrize("relative", ["rotation", "rotation_joint", "clipped"])
def test_a_relative_kernel_is_in_both_the_estimate_and_the_truth(relative: str):
    query, key, value = (tensor.float() for tensor in draw_inputs(15))
    kernel_relative = make_relative(relative, heads=3, dim=5, num_axes=2, kernel="positive")
    kernel = build_kernel("positive", kernel_relative, 5)
    assert isinstance(kernel, Positive)
    positions = Grid((3, 5)).positions()
    report = estimator_report(query, key, value, kernel, relative=kernel_relative, positions=positions)
    doubles = [tensor.double() for tensor in (query, key, value)]
    exact = attention(*doubles, relative=kernel_relative, positions=positions)
    estimate = attention(*doubles, kernel=kernel, relative=kernel_relative, positions=positions)
    assert report.error == pytest.approx(float((estimate - exact).norm() / exact.norm()))


def test_outputs_are_compared_entry_by_entry_with_a_mean_that_broadcasts():
    exact, estimate = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    report = EstimatorReport.from_outputs(estimate.double(), exact.double(), torch.zeros(1, 2).double())
    assert report == EstimatorReport(error=3 / 5, error_of_mean=1.0, spread=10**0.5 / 5)


def test_where_the_truth_is_the_mean_of_the_values_nothing_has_collapsed():
    query, key, value = draw_inputs(11)
    for queries, values in ((query, torch.ones_like(value)), (query, 0 * value), (0 * query, value)):
        report = estimator_report(queries, key, values, build_positive(7))
        assert report.spread == 1
        assert report.error_of_mean < 1e-12
        assert not report.collapsed
        assert torch.tensor([report.error, report.error_of_mean]).isfinite().all()


def test_it_is_collapsed_below_the_limit_only():
    assert EstimatorReport(1.0, 1.0, COLLAPSED_SPREAD - 1e-9).collapsed
    assert not EstimatorReport(1.0, 1.0, COLLAPSED_SPREAD).collapsed


def test_it_leaves_no_gradient_behind():
    query, key, value = (tensor.requires_grad_() for tensor in draw_inputs(7))
    estimator_report(query, key, value, build_positive(7))
    assert query.grad is None
    assert torch.is_grad_enabled()
