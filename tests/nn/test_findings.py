"""Findings about measurements, without a layer."""

import dataclasses
from typing import Any

import pytest
import torch

from teka.nn.diagnostics.report import (
    RECOMMENDATIONS,
    ApproximationErrors,
    Finding,
    HeadMeasurements,
    RandomFeatureErrors,
    ShiftErrors,
    estimate_required_features,
    find_layer_problems,
)

GOOD_ERRORS = ApproximationErrors(error=0.05, error_of_mean=0.4, spread=1.0)
GOOD_HEADS = HeadMeasurements(
    name="positive × rotation",
    relative="rotation",
    heads=(2, 3),
    backend="toeplitz",
    features=RandomFeatureErrors(
        "softmax × rotation",
        64,
        is_biased=False,
        total=GOOD_ERRORS,
        by_head=(GOOD_ERRORS, GOOD_ERRORS),
    ),
    bound=1.0,
    output_ratio=0.4,
    largest_output=0.5,
    largest_gain=1.0,
    share_of_gains_above_1=0.0,
    unevenness=(3.0, 4.0),
    query_norm=(1.0, 1.2),
    key_norm=(1.1, 1.0),
    rounding={"toeplitz": 1e-7},
)
SMALL_VALUES = {"query": 3.0, "value": 2.0}
GOOD_SHIFT = ShiftErrors(
    "rolled around the torus", {(1.0, 0.0): 1e-7}, noise_floor=0.0, float64_error=1e-16
)


def find(
    shift: ShiftErrors | None = GOOD_SHIFT, largest: dict[str, float] = SMALL_VALUES, **changes: Any
) -> list[Finding]:
    heads = dataclasses.replace(GOOD_HEADS, **changes)
    return list(find_layer_problems([heads], largest, shift, dtype=torch.float32, dim_head=16))


def finding_names(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings]


def make_gains(largest: float, share: float, bound: float | None = None) -> dict[str, Any]:
    return {
        "bound": bound,
        "output_ratio": largest / 2,
        "largest_gain": largest,
        "share_of_gains_above_1": share,
    }


def make_feature_errors(
    error: float, spread: float = 1.0, is_biased: bool = False
) -> RandomFeatureErrors:
    errors = ApproximationErrors(error, 0.4, spread)
    return RandomFeatureErrors(
        "softmax", 64, is_biased=is_biased, total=errors, by_head=(GOOD_ERRORS, errors)
    )


def test_good_measurements_have_no_findings():
    assert find() == []
    assert find(shift=None) == []


def test_inaccurate_features_have_the_recommended_number():
    assert estimate_required_features(0.3, 64) == 576
    assert estimate_required_features(0.1, 64) == 64
    (finding,) = find(features=make_feature_errors(0.3))
    assert finding.name == "inaccurate features"
    assert finding.value == 0.3
    assert "with 64 random features has an error of 30 %" in finding.message
    assert "The mean of the values has an error of 40 %" in finding.message
    assert "For an error of 10 %, use at least 576 features." in finding.message
    for kernel in ("'softmax'", "'squared_relu'", "'taylor2'"):
        assert kernel in str(finding)


def test_long_queries_and_keys_are_named_with_their_norms():
    findings = find(features=make_feature_errors(0.3), query_norm=(5.0, 7.0), key_norm=(4.0, 4.0))
    assert finding_names(findings) == ["inaccurate features", "long queries and keys"]
    assert "mean norms of 6 and 4" in findings[1].message


def test_a_collapse_names_its_heads():
    (finding,) = find(features=make_feature_errors(0.05, spread=0.01))
    assert finding.name == "collapsed features"
    assert (finding.value, finding.threshold) == (0.01, 0.1)
    assert finding.message.endswith("have collapsed in head 3.")
    assert "nearly the mean of the values for every query. Use more random features" in str(finding)
    both = find(features=make_feature_errors(0.05, spread=0.01), unevenness=(0.0, 0.0))
    assert finding_names(both) == ["collapsed features"]


def test_biased_draws_and_clipped_features_have_their_own_findings():
    findings = find(features=make_feature_errors(0.3, is_biased=True))
    assert finding_names(findings) == ["inaccurate features", "biased features"]
    (finding,) = find(features=make_feature_errors(0.3), relative="clipped_features", key_norm=None)
    assert finding.name == "inaccurate position features"
    assert "relative='clipped'" in str(finding)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"unevenness": (0.0, 4.0)}, "even weights", "are nearly equal in head 2."),
        ({"unevenness": (0.0, 0.0)}, "even weights", "are nearly equal in heads 2, 3."),
        (
            {"rounding": {"fft": 0.01}},
            "rounding of a backend",
            "The backend 'fft' of positive × rotation differs from 'dense' by 1.0e-02",
        ),
        (
            {"num_constant_waves": 3},
            "constant waves",
            "3 sinusoids of positive × rotation are constant on this grid.",
        ),
    ],
)
def test_findings_about_heads(changes: dict[str, Any], name: str, message: str):
    (finding,) = find(**changes)
    assert finding.name == name
    assert message in finding.message


def test_large_or_frequent_gains_above_the_bound_are_large_outputs():
    for bounded in (
        make_gains(1.9, 0.09),
        make_gains(3.3, 1.0, bound=1 / 0.3),
        make_gains(1 + 1e-9, 1.0),
        make_gains(40.0, 1.0, bound=50.0),
    ):
        assert find(**bounded) == []
    for unbounded in (
        make_gains(11.0, 0.001),
        make_gains(1.9, 0.2),
        make_gains(11.0, 0.001, bound=1.0),
    ):
        (finding,) = find(**unbounded)
        assert finding.name == "large outputs"
        assert finding.value == unbounded["largest_gain"]
        assert f"up to {unbounded['output_ratio']:.3g} times the largest value" in finding.message
        assert "rotary_normalizer='mixed' (the default) or 'nonnegative'" in str(finding)
        assert "kernel='squared_relu' or kernel='positive'" in str(finding)


def test_float16_overflow_names_the_largest_tensor():
    assert find(largest={"query": 6e3, "value": 1.0}) == []
    (finding,) = find(largest={"query": 4e4, "value": 1.0})
    assert finding.name == "float16 overflow"
    assert finding.value == pytest.approx(65504 / 4e4)
    assert "The largest query is 4e+04" in finding.message
    assert "Compute in bfloat16" in str(finding)


def test_rounding_under_shifts_is_not_shift_sensitivity():
    broken = dataclasses.replace(GOOD_SHIFT, by_shift={(1.0, 0.0): 0.24}, float64_error=0.23)
    (finding,) = find(shift=broken)
    assert finding.name == "shift sensitivity"
    assert finding.value == 0.23
    assert "A shift changes the output by 2.4e-01" in finding.message
    assert "use relative='rotation', which is exactly equivariant" in str(finding)
    rounded = dataclasses.replace(GOOD_SHIFT, by_shift={(1.0, 0.0): 0.001})
    (finding,) = find(shift=rounded)
    assert finding.name == "rounding under shifts"
    assert "in float64 by 1.0e-16" in finding.message


def test_every_recommendation_is_a_sentence():
    for name, recommendation in RECOMMENDATIONS.items():
        assert recommendation.endswith("."), name
        assert recommendation[0].isupper() or recommendation.startswith("relative="), name
