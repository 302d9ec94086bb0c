from dataclasses import replace

import pytest
import torch

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadedModel
from teka.audit.adapters.inputs import ImageOptions, prepare_audit_inputs
from teka.audit.measure.noise import NoiseFloor
from teka.audit.model_comparison import compare_models

SETTINGS = AuditSettings(shifts=[(0, 1), (1, 0)], parts=(), num_resamples=100, num_examples=0)
OPTIONS = ImageOptions("digits", images=40)


def model_with_error(size):
    """Return a model whose features depend slightly on the position of the content."""

    def features(images):
        weights = torch.arange(images.shape[3], dtype=images.dtype)
        return torch.cat([images.mean((2, 3)), size * (images.mean((1, 2)) @ weights)[:, None]], 1)

    return LoadedModel("model", "factory", features, output="features")


@pytest.fixture(scope="module")
def inputs_and_reports():
    audit_inputs = [
        prepare_audit_inputs(model_with_error(s), OPTIONS, SETTINGS) for s in (1e-4, 2e-2)
    ]
    return audit_inputs, [
        audit(inputs.function, inputs.images, None, inputs.settings) for inputs in audit_inputs
    ]


def p_value(audit_inputs, reports):
    (pair,) = compare_models(audit_inputs, reports).pairs
    return pair.comparison.numbers["mean_error"].p_value


def test_difference_above_the_noise_is_significant(inputs_and_reports):
    assert p_value(*inputs_and_reports) < 0.001


@pytest.mark.parametrize("floor", [NoiseFloor(0.5, None), NoiseFloor(0.0, 0.5)])
def test_difference_within_the_measured_noise_is_not_significant(inputs_and_reports, floor):
    audit_inputs, (first, second) = inputs_and_reports
    assert p_value(audit_inputs, [first, replace(second, noise_floor=floor)]) == 1.0


def test_difference_within_rounding_errors_is_not_significant(inputs_and_reports):
    audit_inputs, (first, second) = inputs_and_reports
    metrics = tuple(replace(mode_metrics, epsilon=0.25) for mode_metrics in second.metrics)
    assert p_value(audit_inputs, [first, replace(second, metrics=metrics)]) == 1.0
