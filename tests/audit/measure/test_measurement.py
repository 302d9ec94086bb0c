import pytest

from teka.audit.measure.measurement import check_stride, infer_output


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 10), ("logits", None)),
        ((3, 1), ("features", None)),
        ((3, 4, 5), ("features", None)),
        ((3, 4, 12, 18), ("dense", (1, 1))),
        ((3, 4, 6, 6), ("dense", (2, 3))),
        ((3, 4, 1, 9), ("dense", (12, 2))),
        ((3, 4, 1, 1), ("features", None)),
        ((3, 4, 5, 9), ("features", None)),
    ],
)
def test_the_kind_follows_from_the_shape(shape, expected):
    assert infer_output(shape, (12, 18)) == expected


def test_a_choice_goes_before_the_shape():
    assert infer_output((3, 10), (12, 18), "features") == ("features", None)
    assert infer_output((3, 4, 6, 6), (12, 18), "features") == ("features", None)
    assert infer_output((3, 4, 1, 1), (12, 18), "dense") == ("dense", (12, 18))


def test_a_stride_makes_maps_of_other_sizes_dense():
    assert infer_output((3, 4, 10, 16), (12, 18), stride=1) == ("dense", (1, 1))
    assert infer_output((3, 4, 5, 5), (12, 18), "dense", (2, 3)) == ("dense", (2, 3))


@pytest.mark.parametrize(
    ("shape", "output", "stride", "message"),
    [
        ((3, 10), "dense", None, r"shape \(3, 10\), expected \(batch, channels, size, size\)"),
        ((3, 4, 5, 9), "dense", None, r"expected sizes that divide \(12, 18\).*give stride"),
        ((3, 4, 6), "logits", None, r"shape \(3, 4, 6\), expected \(batch, classes\)"),
        ((3, 1), "logits", None, "two or more classes"),
        ((3, 10), "auto", 2, r"stride is 2, expected None"),
    ],
)
def test_an_output_of_another_kind_is_refused(shape, output, stride, message):
    with pytest.raises(ValueError, match=message):
        infer_output(shape, (12, 18), output, stride)


@pytest.mark.parametrize("stride", [0, (2, 2, 2), (2, 0), (1.5, 2)])
def test_a_stride_that_is_none_is_refused(stride, as_users_run_it):
    with pytest.raises(ValueError, match="stride is"):
        check_stride(stride, 2)
