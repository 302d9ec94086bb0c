from dataclasses import replace

import pytest
import torch

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadedModel
from teka.audit.adapters.inputs import ImageOptions, make_audit_inputs
from teka.audit.measure.noise import NoiseFloor
from teka.audit.model_comparison import compare_models

SETTINGS = AuditSettings(shifts=[(0, 1), (1, 0)], parts=(), num_resamples=100, num_examples=0)
OPTIONS = ImageOptions("digits", images=40)


def model_with_error(size):
    """A model whose features depend on the position of the content by a small amount."""

    def features(images):
        weights = torch.arange(images.shape[3], dtype=images.dtype)
        return torch.cat([images.mean((2, 3)), size * (images.mean((1, 2)) @ weights)[:, None]], 1)

    return LoadedModel("model", "factory", features, output="features")


@pytest.fixture(scope="module")
def compared():
    cases = [make_audit_inputs(model_with_error(s), OPTIONS, SETTINGS) for s in (1e-4, 2e-2)]
    return cases, [audit(case.function, case.images, None, case.settings) for case in cases]


def p_value(cases, reports):
    (pair,) = compare_models(cases, reports).pairs
    return pair.comparison.numbers["mean_error"].p_value


def test_a_difference_above_the_noise_is_significant(compared):
    assert p_value(*compared) < 0.001


@pytest.mark.parametrize("floor", [NoiseFloor(0.5, None), NoiseFloor(0.0, 0.5)])
def test_a_difference_within_the_measured_noise_of_one_model_is_not_significant(compared, floor):
    cases, (first, second) = compared
    assert p_value(cases, [first, replace(second, noise_floor=floor)]) == 1.0


def test_a_difference_within_the_rounding_errors_of_the_dtype_is_not_significant(compared):
    cases, (first, second) = compared
    metrics = tuple(replace(each, epsilon=0.25) for each in second.metrics)
    assert p_value(cases, [first, replace(second, metrics=metrics)]) == 1.0
