import pytest
import torch
from torch import nn

from teka.audit.measure.outputs import ModelError, OutputKind, call_model, check_stride, infer_output

BATCH = torch.arange(2 * 1 * 5 * 7, dtype=torch.float64).reshape(2, 1, 5, 7)


def call(function):
    return call_model(function, BATCH, lambda: "at shift (1, 2)")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 10), OutputKind("logits")),
        ((3, 1), OutputKind("features")),
        ((3, 4, 5), OutputKind("features")),
        ((3, 4, 12, 18), OutputKind("dense", (1, 1))),
        ((3, 4, 6, 6), OutputKind("dense", (2, 3))),
        ((3, 4, 1, 9), OutputKind("dense", (12, 2))),
        ((3, 4, 1, 1), OutputKind("features")),
        ((3, 4, 5, 9), OutputKind("features")),
    ],
)
def test_the_kind_follows_from_the_shape(shape, expected):
    assert infer_output(shape, (12, 18)) == expected


def test_a_choice_goes_before_the_shape():
    assert infer_output((3, 10), (12, 18), "features") == OutputKind("features")
    assert infer_output((3, 4, 6, 6), (12, 18), "features") == OutputKind("features")
    assert infer_output((3, 4, 1, 1), (12, 18), "dense") == OutputKind("dense", (12, 18))


def test_a_stride_makes_maps_of_other_sizes_dense():
    assert infer_output((3, 4, 10, 16), (12, 18), stride=1) == OutputKind("dense", (1, 1))
    assert infer_output((3, 4, 5, 5), (12, 18), "dense", (2, 3)) == OutputKind("dense", (2, 3))


@pytest.mark.parametrize(
    ("shape", "output", "stride", "message"),
    [
        ((3, 10), "logit", None, "output is 'logit'.*did you mean 'logits'"),
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


def test_the_output_of_an_object_with_logits_is_taken_out_of_it():
    class Answer:
        logits = BATCH.sum((1, 2))

    assert torch.equal(call(lambda _: Answer()), BATCH.sum((1, 2)))


def test_the_model_runs_in_inference_mode():
    assert call(lambda batch: torch.full((2, 1), float(torch.is_inference_mode_enabled()))).tolist() == [[1], [1]]


def test_what_a_model_raises_is_the_cause_of_an_error_that_says_where():
    with pytest.raises(ModelError, match=r"the model raised RuntimeError at shift \(1, 2\): .*shapes") as caught:
        call(nn.Linear(3, 4).double())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, ValueError)


def test_the_error_of_too_little_memory_gives_a_hint():
    def fail(batch):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(ModelError, match="no room; a smaller batch_size needs less memory"):
        call(fail)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: (batch, batch), r"is a tuple at shift \(1, 2\), expected a tensor or an object with one as"),
        (lambda batch: batch.long(), r"of torch.int64 at shift \(1, 2\)"),
        (lambda batch: batch.sum(), r"shape \(\) at shift \(1, 2\), expected \(2, …\)"),
        (lambda batch: batch.sum((1, 2, 3)), r"shape \(2,\)"),
        (lambda batch: batch[:1], r"shape \(1, 1, 5, 7\)"),
        (lambda batch: batch[:, :0], r"shape \(2, 0, 5, 7\)"),
    ],
)
def test_what_is_no_output_is_refused(function, message):
    with pytest.raises(ModelError, match=message):
        call(function)
