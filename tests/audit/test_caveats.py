import pytest
import torch
from torch import Tensor, nn

from teka.audit import square_shifts
from teka.audit.caveats import (
    Caveat,
    warn_about_batch_dependence,
    warn_about_chance_accuracy,
    warn_about_equal_predictions,
    warn_about_few_images,
    warn_about_fill_value,
    warn_about_missed_aliasing,
    warn_about_nondeterminism,
    warn_about_other_scale,
    warn_about_random_features,
    warn_about_resizing,
    warn_about_training_mode,
)
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.nn import Attention

THREE_CLASSES = torch.arange(30) % 3
ONE_CLASS = torch.ones(30, dtype=torch.int64)
SAME_OUTPUTS = torch.tensor([[0.0, 1.0, 0.0]]).expand(2, -1)


def make_responses(predictions: Tensor, labels: Tensor | None) -> Responses:
    shifts = tuple((0, step) for step in range(len(predictions)))
    zeros = torch.zeros(predictions.shape, dtype=torch.float64)
    evaluated = torch.ones(predictions.shape, dtype=torch.bool)
    return Responses(
        Movement("circular"), shifts, "logits", evaluated, zeros, zeros + 1, labels, predictions
    )


def test_unknown_severity_is_an_error():
    with pytest.raises(
        ValueError, match=r"severity must be one of .*got 'limit'.*Did you mean 'limits'"
    ):
        Caveat("resize", "limit", "one pixel is two")


def test_submodule_in_training_mode_has_a_note():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    assert not list(warn_about_training_mode(module))
    module[1].train()
    (caveat,) = warn_about_training_mode(module)
    assert (caveat.name, caveat.severity) == ("training mode", "note")
    assert "1 of its parts, the first '1'" in caveat.message


def test_nondeterminism_above_rounding_errors_invalidates():
    (caveat,) = warn_about_nondeterminism(0.02)
    assert caveat.severity == "invalidates"
    assert "differ by 0.02" in caveat.message
    assert not list(warn_about_nondeterminism(1e-7))


def test_layers_equivariant_in_expectation_have_a_caveat():
    class RandomLayer(nn.Module):
        def __init__(self, kind: object) -> None:
            super().__init__()
            self.equivariance = kind

    (caveat,) = warn_about_random_features(
        nn.ModuleDict({"first": RandomLayer({"shift": "in expectation"}), "last": nn.ReLU()})
    )
    assert caveat.severity == "limits"
    assert "1 layers (the first 'first')" in caveat.message
    assert not list(
        warn_about_random_features(
            nn.Sequential(RandomLayer({"shift": "exact"}), RandomLayer({}), RandomLayer("anything"))
        )
    )
    joint, rotary = (
        Attention(16, heads=2, kernel="positive", relative=relative)
        for relative in ("rotation_joint", "rotary")
    )
    (caveat,) = warn_about_random_features(nn.ModuleDict({"first": joint, "last": rotary}))
    assert "1 layers (the first 'first')" in caveat.message


def test_few_images_have_a_caveat():
    for images, num_caveats in [(50, 1), (100, 1), (150, 0), (10_000, 0)]:
        caveats = list(warn_about_few_images(images, 0.95))
        assert [caveat.severity for caveat in caveats] == ["limits"] * num_caveats, images
        assert images != 50 or "from 78.6 to 95.7 %" in caveats[0].message


def batch_norm_model(*, running: bool) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, track_running_stats=running)
    return nn.Sequential(nn.Conv2d(3, 3, 3), norm, nn.Flatten(), nn.LazyLinear(5)).eval()


def test_batch_dependent_output_has_a_caveat_with_the_layer():
    images = torch.randn(5, 3, 7, 7)
    (caveat,) = warn_about_batch_dependence(batch_norm_model(running=False), images, 0.0)
    assert (caveat.name, caveat.severity) == ("batch statistics", "invalidates")
    assert "no running statistics in 1." in caveat.message
    assert not list(warn_about_batch_dependence(batch_norm_model(running=True), images, 0.0))
    assert not list(warn_about_batch_dependence(batch_norm_model(running=False), images[:1], 0.0))
    assert list(
        warn_about_batch_dependence(
            lambda batch: batch.flatten(1) - batch.flatten(1).mean(0), images, 0.0
        )
    )


def test_batch_dependence_within_the_noise_has_no_caveat():
    def noisy(images: Tensor) -> Tensor:
        return images.flatten(1) * (1 + 0.05 * (len(images) == 1))

    images = torch.randn(5, 1, 3, 3)
    assert not list(warn_about_batch_dependence(noisy, images, 0.01))
    assert len(list(warn_about_batch_dependence(noisy, images, 0.0))) == 1


def normalized_images() -> Tensor:
    images = torch.zeros(3, 2, 7, 11)
    images[:, :, 2:5, 3:8] = torch.rand(3, 2, 5, 3).transpose(2, 3)
    return (images - 0.1307) / 0.3081


def test_zero_fill_of_normalized_images_has_a_caveat():
    images = normalized_images()
    (caveat,) = warn_about_fill_value(images, Movement("zero"))
    assert caveat.severity == "limits"
    assert "100.0 % of the border's pixels are -0.424" in caveat.message
    assert "background=-0.4242" in caveat.message
    ground = float(images[0, 0, 0, 0])
    (caveat,) = warn_about_fill_value(images, Movement("zero", background=(ground, 0.0)))
    assert "(channel 1)" in caveat.message
    for movement in (
        Movement("zero", background=ground),
        Movement("circular"),
        Movement("lossless"),
    ):
        assert not list(warn_about_fill_value(images, movement))


def test_zero_fill_of_normalized_natural_images_has_a_note():
    torch.manual_seed(0)
    (caveat,) = warn_about_fill_value(torch.randn(3, 3, 7, 11), Movement("zero"))
    assert caveat.severity == "note"
    assert not list(warn_about_fill_value(torch.rand(3, 3, 7, 11), Movement("zero")))


def test_constant_predictor_has_a_caveat():
    for labels in [THREE_CLASSES, None]:
        (caveat,) = warn_about_equal_predictions(
            make_responses(ONE_CLASS.expand(4, -1), labels), SAME_OUTPUTS
        )
        assert (caveat.name, caveat.severity) == ("constant predictor", "invalidates"), labels
        right = "" if labels is None else ", the label of 33.3 % of the images"
        assert f"100.0 % of all predictions are class 1{right}." in caveat.message, labels


def test_images_that_may_well_be_of_one_class_do_not_invalidate_the_results():
    predictions = ONE_CLASS.expand(4, -1)
    outputs = torch.tensor([[0.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
    (caveat,) = warn_about_equal_predictions(
        make_responses(predictions, None), outputs, ("cat", "dog", "cow")
    )
    assert (caveat.name, caveat.severity) == ("one predicted class", "limits")
    assert "100.0 % of all predictions are class 1 (dog)." in caveat.message
    assert "Add images of other classes." in caveat.message
    # The data names fewer classes than the model predicts.
    (caveat,) = warn_about_equal_predictions(make_responses(predictions, None), outputs, ("cat",))
    assert "100.0 % of all predictions are class 1." in caveat.message
    # The logits differ between images, but not the probabilities.
    shifted = SAME_OUTPUTS + torch.tensor([[0.0], [1.0]])
    (caveat,) = warn_about_equal_predictions(make_responses(predictions, None), shifted)
    assert caveat.severity == "invalidates"
    mostly_one_class = torch.where(torch.arange(30) < 28, 1, 0)
    for labels, severity in ((mostly_one_class, "limits"), (THREE_CLASSES, "invalidates")):
        (caveat,) = warn_about_equal_predictions(make_responses(predictions, labels), outputs)
        assert caveat.severity == severity, labels


def test_nearly_equal_predictions_have_a_caveat():
    predictions = torch.ones(4, 30, dtype=torch.int64)
    predictions[0, 0] = 0
    (caveat,) = warn_about_equal_predictions(
        make_responses(predictions, THREE_CLASSES), SAME_OUTPUTS
    )
    assert caveat.name == "collapsed predictions"
    assert not list(
        warn_about_equal_predictions(
            make_responses(THREE_CLASSES.expand(4, -1), THREE_CLASSES), SAME_OUTPUTS
        )
    )


def test_images_of_one_class_have_a_caveat():
    (caveat,) = warn_about_equal_predictions(
        make_responses(ONE_CLASS.expand(4, -1), ONE_CLASS), SAME_OUTPUTS, ("cat", "dog")
    )
    assert (caveat.name, caveat.severity) == ("one class", "limits")
    assert "Every image has the label class 1 (dog)." in caveat.message
    (caveat,) = warn_about_equal_predictions(
        make_responses(ONE_CLASS.expand(4, -1), ONE_CLASS), SAME_OUTPUTS, ("0", "1")
    )
    assert "Every image has the label class 1. " in caveat.message
    assert not list(warn_about_chance_accuracy(make_responses(ONE_CLASS.expand(2, -1), ONE_CLASS)))


def test_dense_outputs_have_no_caveat_about_predictions():
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    dense = Responses(
        Movement("circular"),
        ((0, 0),),
        "dense",
        torch.ones(1, 2, dtype=torch.bool),
        zeros,
        zeros + 1,
    )
    assert not list(warn_about_equal_predictions(dense, SAME_OUTPUTS))


def test_chance_accuracy_has_a_caveat():
    labels = torch.arange(300) % 3
    (caveat,) = warn_about_chance_accuracy(make_responses((labels * 0)[None].expand(2, -1), labels))
    assert caveat.severity == "invalidates"
    assert "33.3 % of 300 images are classified correctly" in caveat.message
    assert not list(warn_about_chance_accuracy(make_responses(labels.expand(2, -1), labels)))
    assert not list(warn_about_chance_accuracy(make_responses(labels.expand(2, -1), None)))
    # Two correct images are too few for a caveat about chance. Another caveat warns about few images.
    assert not list(
        warn_about_chance_accuracy(make_responses(labels[:2].expand(2, -1), labels[:2]))
    )


def test_shifts_by_multiples_of_the_stride_have_a_caveat():
    for shifts, stride, has_caveat in [
        ([(0, 0), (0, 4), (-8, 12)], (4, 4), True),
        (square_shifts(2), (4, 4), False),
        ([(0, 0), (0, 0.5)], (2, 2), False),
        ([(0, 0), (0, 3)], (1, 1), False),
        ([(0, 0)], (4, 4), False),
    ]:
        caveats = list(warn_about_missed_aliasing(tuple(shifts), stride))
        assert bool(caveats) == has_caveat, (shifts, stride, has_caveat)
        assert (
            not has_caveat
            or "a multiple of the model's stride of 4 × 4 pixels" in caveats[0].message
        ), (shifts, stride, has_caveat)


def test_other_scale_than_in_use_has_a_note():
    (found,) = warn_about_other_scale(235, 240)
    sizes = "resized images to a shorter side of 240 instead of a shorter side of 235."
    assert sizes in found.message
    assert "model's own" not in found.message  # the size may be that of --input-size
    (squashed,) = warn_about_other_scale((224, 224), (240, 240))
    assert "resized images to 240 × 240" in squashed.message
    assert not list(warn_about_other_scale(256, 256))
    assert not list(warn_about_other_scale(None, (240, 240)))


def test_resizing_caveat_gives_the_shift_in_both_resolutions():
    (after,) = warn_about_resizing((28, 28), (224, 224), before_resize=False, max_shift=8)
    assert "Images of 28 × 28 were resized to 224 × 224 and then shifted" in after.message
    assert "8 pixels is 1 pixels" in after.message
    (before,) = warn_about_resizing((28, 28), (56, 56), before_resize=True, max_shift=8)
    assert "one pixel of a shift is 2 pixels for the model" in before.message
    assert not list(warn_about_resizing((28, 30), (28, 30), before_resize=False, max_shift=8))
