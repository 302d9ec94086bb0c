from statistics import NormalDist

import pytest
import torch

from teka.audit.statistics.estimate import BootstrapSettings
from teka.audit.statistics.simultaneous import simultaneous_critical_value

SETTINGS = BootstrapSettings(num_resamples=20000)
NORMAL = NormalDist().inv_cdf(0.975)


def sidak(rows):
    return NormalDist().inv_cdf((1 + 0.95 ** (1 / rows)) / 2)


def centred(rows, images=211, seed=0):
    values = torch.randn(rows, images, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values - values.mean(dim=1, keepdim=True)


def test_one_row_has_the_normal_quantile():
    assert simultaneous_critical_value(centred(1), SETTINGS) == pytest.approx(NORMAL, abs=0.03)


def test_rows_that_go_together_count_as_one():
    rows = centred(1) * torch.tensor([[1.0], [2.0], [-0.5]], dtype=torch.float64)
    assert simultaneous_critical_value(rows, SETTINGS) == pytest.approx(NORMAL, abs=0.03)


def test_independent_rows_count_as_many():
    basis = torch.linalg.qr(centred(30).T).Q.T.contiguous()
    assert simultaneous_critical_value(basis, SETTINGS) == pytest.approx(sidak(30), abs=0.04)


def test_rows_without_spread_count_only_if_asked_for_and_then_as_independent():
    rows = torch.cat([centred(1), torch.zeros(9, 211, dtype=torch.float64)])
    assert simultaneous_critical_value(rows, SETTINGS) == pytest.approx(NORMAL, abs=0.03)
    assert simultaneous_critical_value(rows, SETTINGS, num_constant=9) == pytest.approx(sidak(10), abs=0.04)
    assert simultaneous_critical_value(rows[1:], SETTINGS, num_constant=9) == pytest.approx(sidak(9), abs=0.04)


def test_it_is_never_below_that_of_one_row():
    assert simultaneous_critical_value(torch.zeros(4, 5, dtype=torch.float64), SETTINGS) == NORMAL
