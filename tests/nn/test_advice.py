import dataclasses
from typing import Any

import pytest
import torch

from teka.functional.attention import EstimatorReport
from teka.nn.diagnostics.report import (
    EstimatorFindings,
    GroupFindings,
    ShiftFindings,
    SizeFindings,
    advise,
    features_for,
)

SOUND = EstimatorReport(error=0.05, error_of_mean=0.4, spread=1.0)
SIZE = SizeFindings(
    bound=1.0, times_the_values=0.4, largest_gain=1.0, share_above_1=0.0, largest_output=0.5
)
GROUP = GroupFindings(
    name="positive × rotation",
    kernel="positive",
    relative="rotation",
    first_head=2,
    num_heads=2,
    backend="toeplitz",
    size=SIZE,
    estimator=EstimatorFindings(
        "softmax × rotation", 64, is_biased=False, total=SOUND, by_head=(SOUND, SOUND)
    ),
    variation=(0.3, 0.4),
    unevenness=(3.0, 4.0),
    rounding={"toeplitz": 1e-7},
    query_norm=(1.0, 1.2),
    key_norm=(1.1, 1.0),
)
LARGEST = {"queries": 3.0, "values": 2.0}
SHIFT = ShiftFindings(
    "rolled round the torus", {(1.0, 0.0): 1e-7}, noise_floor=0.0, without_rounding=1e-16
)


def advice(
    shift: ShiftFindings | None = SHIFT,
    num_tokens: int = 10_000,
    largest: dict[str, float] = LARGEST,
    **changes: Any,
) -> list[str]:
    group = dataclasses.replace(GROUP, **changes)
    return list(
        advise((group,), largest, shift, dtype=torch.float32, num_tokens=num_tokens, dim_head=16)
    )


def size(gain: float, share: float, bound: float | None = None) -> SizeFindings:
    return SizeFindings(
        bound, times_the_values=gain / 2, largest_gain=gain, share_above_1=share, largest_output=1.0
    )


def estimator(error: float, spread: float = 1.0, is_biased: bool = False) -> EstimatorFindings:
    report = EstimatorReport(error, 0.4, spread)
    return EstimatorFindings(
        "softmax", 64, is_biased=is_biased, total=report, by_head=(SOUND, report)
    )


def test_where_all_is_well_there_is_nothing_to_do():
    assert advice() == []
    assert advice(shift=None) == []


def test_the_number_of_features_follows_from_the_root_law():
    assert features_for(0.3, 64) == 576
    assert features_for(0.1, 64) == 64
    sentences = advice(estimator=estimator(0.3))
    assert "errs by 30 % with 64 features." in sentences[0]
    assert "10 % takes 576 or more (num_features)." in sentences[0]
    assert "more features than there are tokens" not in sentences[1]
    assert (
        "kernel='softmax' is exact and costs less at 500"
        in advice(estimator=estimator(0.3), num_tokens=500)[1]
    )
    assert (
        "more than predicting the mean of the values would" in advice(estimator=estimator(0.6))[0]
    )
    assert any("'squared_relu'" in sentence and "'taylor2'" in sentence for sentence in sentences)


def test_long_queries_and_keys_are_named_with_their_norms():
    long = advice(estimator=estimator(0.3), query_norm=(5.0, 7.0), key_norm=(4.0, 4.0))
    assert any("mean norms 6 and 4" in sentence for sentence in long)
    assert not any("norms" in sentence for sentence in advice(estimator=estimator(0.3)))


def test_a_collapse_a_bias_and_rings_have_sentences_of_their_own():
    collapsed = advice(estimator=estimator(0.05, spread=0.01))
    assert collapsed[0].startswith(
        "positive × rotation has collapsed in head 3: the output is the mean of the values"
    )
    assert any(
        "fixed norm" in sentence for sentence in advice(estimator=estimator(0.3, is_biased=True))
    )
    (rings,) = advice(
        estimator=estimator(0.3), relative="clipped_features", name="constant × clipped_features"
    )
    assert "relative='clipped' is the same without random features" in rings


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"unevenness": (0.0, 4.0)},
            "is the mean of the values in head 2: the weights are all but equal",
        ),
        (
            {"unevenness": (0.0, 0.0), "kernel": "constant", "relative": None},
            "in heads 2, 3: the constant kernel",
        ),
        ({"rounding": {"fft": 0.01}}, "The fft backend differs from the dense one by 1.0e-02"),
        ({"rounding": {"linear": 0.01}, "kernel": "trigonometric"}, "or kernel='positive'"),
        (
            {"num_still_waves": 3, "num_waves": 8},
            "3 of the 8 waves of positive × rotation are longer than this torus",
        ),
    ],
)
def test_each_finding_has_its_sentence(changes: dict[str, Any], sentence: str):
    (only,) = advice(**changes)
    assert sentence in only


def test_gains_are_large_or_many_and_above_what_is_promised():
    for bounded in (
        size(1.9, 0.09),
        size(3.3, 1.0, bound=1 / 0.3),
        size(1 + 1e-9, 1.0),
        size(40.0, 1.0, bound=50.0),
    ):
        assert advice(size=bounded) == []
    for unbounded in (size(11.0, 0.001), size(1.9, 0.2), size(11.0, 0.001, bound=1.0)):
        (only,) = advice(size=unbounded, relative="rotary", name="squared_relu × rotary")
        assert only.startswith(
            "The denominator of squared_relu × rotary does not bound its weights: outputs are up to"
        )
        assert (
            "Take rotary_normalizer='nonnegative', or 'mixed' (the default) with a kernel without negative weights,"
            in only
        )
    assert "Take kernel='squared_relu' or 'positive'," in advice(size=size(1e5, 1.0))[0]


def test_little_room_in_float16_is_named_with_its_tensor_and_a_remedy():
    assert advice(largest={"queries": 6e3, "values": 1.0}) == []
    (queries,) = advice(largest={"queries": 4e4, "values": 1.0})
    assert (
        "queries of 4e+04 leave room for 1.6 times as much only: compute in bfloat16, or normalize"
        in queries
    )
    outputs = {"queries": 4e4, "heads' outputs": 7e4}
    (bounded,) = advice(largest=outputs)
    assert (
        "heads' outputs of 7e+04 are infinite there: compute in bfloat16, or make the values smaller"
        in bounded
    )
    assert advice(largest=outputs, size=size(1e5, 1.0))[-1].endswith(
        "or bound the weights, as above."
    )


def test_a_change_under_shifts_is_told_from_rounding():
    broken = dataclasses.replace(SHIFT, by_shift={(1.0, 0.0): 0.24}, without_rounding=0.24)
    assert advice(shift=broken)[0].startswith(
        "A shift changes the output by 24 %: no kernel of this library should."
    )
    assert (
        "relative='rotation' is the same kernel, exact"
        in advice(shift=broken, relative="rotation_joint")[0]
    )
    rounded = dataclasses.replace(SHIFT, by_shift={(1.0, 0.0): 0.001})
    assert "by rounding alone (1.0e-16 in float64)" in advice(shift=rounded)[0]
