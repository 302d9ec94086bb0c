import dataclasses
import math
from collections import OrderedDict
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadOptions, load
from teka.audit.adapters.inputs import ImageOptions, prepare_audit_inputs
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.model_output import (
    KINDS,
    MULTILABEL,
    OutputSource,
    convert_detr_boxes,
    convert_torchvision_detections,
    encode_label_sets,
    flatten_vectors,
    infer_kind,
    select_output,
)
from teka.audit.movement import Movement
from tests.audit.adapters.tiny_vit import quiet
from tests.audit.measure.models import not_none
from tests.raising import raises_for

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CLASSES = {"id2label": dict(enumerate("abc")), "label2id": dict(zip("abc", range(3), strict=True))}
SIZES = {"image_size": [32, 32], "patch_size": 4, "num_channels": 3}
MODELS = {
    "segmentation": lambda: transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[8, 8],
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[1, 1],
            mlp_ratios=[1, 1],
            decoder_hidden_size=8,
            **CLASSES,
        )
    ),
    "boxes": lambda: transformers.YolosForObjectDetection(
        transformers.YolosConfig(**TINY, **SIZES, num_detection_tokens=6, **CLASSES)
    ),
    "features": lambda: transformers.ViTModel(
        transformers.ViTConfig(**TINY, **{**SIZES, "image_size": 32})
    ),
}


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """Return a folder of 60 noise images of 32 × 32 pixels in two classes."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(0)
    for number in range(60):
        (folder / f"{number % 2}").mkdir(exist_ok=True)
        levels = torch.randint(256, (32, 32, 3), dtype=torch.uint8).numpy()
        Image.fromarray(levels).save(folder / f"{number % 2}" / f"{number}.png")
    return folder


@pytest.mark.parametrize("output", MODELS)
def test_transformers_model_is_measured_by_the_metric_of_its_task(output, image_folder, tmp_path):
    torch.manual_seed(0)
    with quiet():
        model = MODELS[output]()
        if output == "boxes":  # A high bias of one class makes the model detect objects.
            model.class_labels_classifier.layers[-1].bias.data = torch.tensor([0.0, 9.0, 0.0, 0.0])
        model.save_pretrained(tmp_path / "model")
        subject = load(str(tmp_path / "model"), LoadOptions(input_size=32))
    assert subject.output == output
    settings = AuditSettings(shifts=[(0, 1), (2, 0)], parts=(), num_examples=0, num_resamples=40)
    audit_inputs = prepare_audit_inputs(subject, ImageOptions(str(image_folder)), settings)
    assert audit_inputs.labels is None
    report = audit(
        audit_inputs.function,
        audit_inputs.images,
        settings=audit_inputs.settings,
        **audit_inputs.audit_arguments,
    )
    assert report.failures == ()
    expected = {"segmentation": "overlap", "boxes": "overlap", "features": "retrieval"}[output]
    assert 0 <= report.metrics[0].numbers[expected].value <= 1


def test_segmentation_is_resized_to_the_image_size(tmp_path):
    with quiet():
        MODELS["segmentation"]().save_pretrained(tmp_path)
        maps = load(str(tmp_path)).function(torch.rand(2, 3, 32, 64))
    assert isinstance(maps, torch.Tensor)
    assert maps.shape == (2, 3, 32, 64)


def test_detr_boxes_are_in_pixels_with_scores_of_classes():
    images = torch.zeros(1, 3, 10, 20)
    logits, boxes = torch.tensor([[[0.0, 2.0, 0.0]]]), torch.tensor([[[0.5, 0.5, 0.2, 0.4]]])
    (box,) = convert_detr_boxes(logits, boxes, OutputSource(images, num_classes=2))[0]
    assert box[:4].tolist() == pytest.approx([8, 3, 12, 7])
    assert box[4:].tolist() == pytest.approx(torch.tensor([0.0, 2.0, 0.0]).softmax(0)[:2].tolist())
    (box,) = convert_detr_boxes(logits, boxes, OutputSource(images, num_classes=3))[0]
    assert box[4:].tolist() == pytest.approx([0.5, torch.tensor(2.0).sigmoid().item(), 0.5])


def test_torchvision_detections_are_padded_with_empty_rows():
    detections = {
        "boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]]),
        "scores": torch.tensor([0.3, 0.8]),
    }
    detections["labels"] = torch.tensor([1, 0])
    none = {
        "boxes": torch.zeros(0, 4),
        "scores": torch.zeros(0),
        "labels": torch.zeros(0, dtype=torch.int64),
    }
    boxes = convert_torchvision_detections(
        [detections, none], OutputSource(torch.zeros(2, 3, 8, 8), num_classes=2)
    )
    assert boxes.shape == (2, 300, 6)
    assert boxes[0, :2].tolist() == [
        pytest.approx([4, 5, 6, 7, 0.8, 0]),
        pytest.approx([0, 1, 2, 3, 0, 0.3]),
    ]
    assert boxes[0, 2:].abs().sum() == boxes[1].abs().sum() == 0


BATCH = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.3, -4.0], [1.0, 1.5, 2.5], [-1.0, -2.0, -0.5]])
MAPS = torch.rand(4, 5, 2, 3, generator=torch.Generator().manual_seed(1))
TOKENS = torch.rand(4, 7, 5, generator=torch.Generator().manual_seed(2))


class Pair(NamedTuple):
    logits: Tensor
    attentions: Tensor


@dataclasses.dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class WithClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 5))


def select(result, module=None, images=BATCH, **options):
    values, kind = select_output(result, OutputSource(images, module), **options)
    return values, kind


def test_select_output_finds_the_logits_in_any_container():
    for result in (
        LOGITS,
        LOGITS.numpy(),
        LOGITS.numpy().astype(">f4"),
        (LOGITS,),
        [LOGITS],
        {"scores": LOGITS},
        {"loss": 0.5, "logits": LOGITS},
        {"logits": LOGITS, "pooler_output": TOKENS[:, 0]},
        Pair(LOGITS, TOKENS),
        Output(None, LOGITS),
        SimpleNamespace(logits=LOGITS),
        ImageClassifierOutput(logits=LOGITS, hidden_states=(TOKENS, TOKENS)),
    ):
        values, kind = select(result)
        assert kind == "auto", type(result)
        assert torch.equal(values, LOGITS), type(result)


def test_features_are_pooler_output_class_token_or_mean():
    without_class_token = nn.Linear(1, 1)
    for result, module, expected in (
        ({"image_embeds": TOKENS[:, 1], "last_hidden_state": TOKENS}, None, TOKENS[:, 1]),
        (
            {"last_hidden_state": TOKENS, "pooler_output": TOKENS[:, 3]},
            WithClassToken(),
            TOKENS[:, 3],
        ),
        ({"last_hidden_state": TOKENS, "pooler_output": None}, WithClassToken(), TOKENS[:, 0]),
        ({"last_hidden_state": TOKENS}, without_class_token, TOKENS.mean(1)),
        ({"last_hidden_state": MAPS}, None, MAPS.mean((2, 3))),
        ({"last_hidden_state": MAPS, "cls_token_value": TOKENS[:, :1]}, None, TOKENS[:, 0]),
        ({"pooler_output": MAPS[..., :1, :1]}, None, MAPS[..., 0, 0]),
        ({"feature_maps": (MAPS[..., :1], MAPS)}, None, MAPS.mean((2, 3))),
    ):
        values, kind = select(result, module)
        assert kind == "features"
        torch.testing.assert_close(flatten_vectors(values, kind), expected)


def test_segmentation_and_boxes_are_recognized_by_their_fields():
    maps = OrderedDict(out=MAPS, aux=MAPS)
    assert select(maps)[1] == "segmentation"
    assert select(maps)[0].shape == (4, 5, 8, 8)
    assert select({"logits": TOKENS, "pred_boxes": TOKENS[..., :4]})[1] == "boxes"
    detection = {
        "boxes": torch.zeros(1, 4),
        "scores": torch.ones(1),
        "labels": torch.ones(1, dtype=torch.int64),
    }
    assert select([detection] * 4)[1] == "boxes"


def test_output_of_a_yolo_detector_becomes_boxes_without_duplicates():
    images = torch.zeros(2, 3, 64, 40)  # grids of 8 × 5, 4 × 3 and 2 × 2 cells
    values = torch.zeros(2, 4 + 2, 40 + 12 + 4)
    centers = torch.tensor([[10.0, 20, 8, 12], [10.5, 20, 8, 12], [10, 20, 8, 12], [30, 20, 8, 12]])
    values[0, :4, 10:14] = centers.T
    values[0, 4, 10:14] = torch.tensor([0.8, 0.9, 0.0, 0.7])
    values[0, 5, 12] = 0.6  # another class at the same position
    boxes, kind = select_output((values, [MAPS]), OutputSource(images))
    assert (kind, boxes.shape) == ("boxes", (2, 56, 6))
    rows = boxes[0, 10:14].tolist()
    assert rows[0][4:] == [0, 0]  # a duplicate of the next box, which has a higher score
    assert rows[1] == pytest.approx([6.5, 14, 14.5, 26, 0.9, 0])
    assert rows[2] == pytest.approx([6, 14, 14, 26, 0, 0.6])
    assert rows[3] == pytest.approx([26, 14, 34, 26, 0.7, 0])
    for other in (values[..., 1:], values.mT, values + 2):
        assert select_output(other, OutputSource(images)).kind == "auto"


def test_output_name_selects_by_name_or_index():
    assert torch.equal(select({"logits": LOGITS, "other": TOKENS}, name="other")[0], TOKENS)
    assert torch.equal(select((LOGITS, TOKENS), name="1")[0], TOKENS)
    with pytest.raises(
        ValueError, match=r"output_name must be one of .*'other'.*got 'othr'.*Did you mean 'other'"
    ):
        select({"logits": LOGITS, "other": TOKENS}, name="othr")
    with pytest.raises(
        ValueError,
        match=r"output_name .* 0 names, got 'logits'.* output of the model is torch.float32",
    ):
        select(LOGITS, name="logits")


def test_unsupported_outputs_are_errors_that_describe_them():
    for result, message in (
        (None, "is None, expected one tensor"),
        ((), "is an empty tuple"),
        ({}, "is an empty dict"),
        ("a cat", "is of type str"),
        (0.5, "is of type float"),
        ([0.5, 0.5], r"is a list of '0' \(float\)"),
        (
            (LOGITS, TOKENS),
            r"is a tuple of '0' \(torch.float32 of shape \(4, 3\)\), '1' .*output_name",
        ),
        ({"a": LOGITS, "b": None, "c": TOKENS}, r"'b' \(None\)"),
        (LOGITS.to(torch.complex64), "is of torch.complex64, expected real"),
        (np.array(["cat"] * 4), "is an array of <U3"),
        (LOGITS.to_sparse(), "layout torch.sparse_coo"),
        (LOGITS.to("meta"), "on meta"),
        ({"last_hidden_state": TOKENS}, "hidden state, which can be read only"),
    ):
        with raises_for(message, ValueError, match=message):
            select(result)


def inferred_kind(values, **options):
    return infer_kind(values, (12, 18), **options)[0]


def test_kind_is_inferred_from_shape_dtype_and_values():
    probabilities = LOGITS.softmax(1)
    for values, expected in (
        (LOGITS, "logits"),
        (LOGITS.half(), "logits"),
        (LOGITS.bfloat16(), "logits"),
        (LOGITS[:, :, None, None], "logits"),
        (LOGITS[:, :1], "logits"),
        (LOGITS[:, :1, None, None], "logits"),
        (probabilities, "probabilities"),
        (probabilities.bfloat16(), "probabilities"),
        (probabilities[:, :, None, None], "probabilities"),
        (probabilities[:, :1], "probabilities"),
        (torch.rand(4, 3) * 0.3, "logits"),
        (torch.arange(4)[:, None], "classes"),
        (torch.tensor([[True], [False]]), "classes"),
        (torch.rand(3, 4, 5), "features"),
        (torch.rand(3, 4, 5, 9), "features"),
    ):
        assert infer_kind(values, (12, 18)) == (expected, None), values.shape
    for sizes, stride in (((12, 18), (1, 1)), ((6, 6), (2, 3)), ((1, 9), (12, 2))):
        assert infer_kind(torch.rand(3, 4, *sizes), (12, 18)) == ("dense", stride)


def test_kind_with_several_labels_per_image_is_multilabel():
    probabilities = LOGITS.sigmoid()
    assert inferred_kind(LOGITS, label_axes=2) == "multilabel"
    assert inferred_kind(LOGITS[:, :, None, None], label_axes=2) == "multilabel"
    assert inferred_kind(probabilities, label_axes=2) == "multilabel_probabilities"
    # Values that sum to 1 are probabilities of exclusive classes.
    assert inferred_kind(LOGITS.softmax(1), label_axes=2) == "probabilities"


def test_requested_kind_is_kept():
    assert infer_kind(LOGITS, (12, 18), "features") == ("features", None)
    assert infer_kind(LOGITS.softmax(1), (12, 18), "logits") == ("logits", None)
    assert infer_kind(torch.rand(3, 4, 6, 6), (12, 18), "features") == ("features", None)
    assert infer_kind(torch.rand(3, 4, 1, 1), (12, 18), "dense") == ("dense", (12, 18))
    assert infer_kind(torch.rand(3, 4, 10, 16), (12, 18), stride=1) == ("dense", (1, 1))
    assert infer_kind(torch.rand(3, 4, 5, 5), (12, 18), "dense", (2, 3)) == ("dense", (2, 3))


def test_output_that_does_not_fit_the_requested_kind_is_an_error():
    for shape, kind, stride, message in (
        (
            (3, 10),
            "dense",
            None,
            r"torch.float32 of shape \(3, 10\), expected a floating-point map for each image",
        ),
        ((3, 4, 5, 9), "dense", None, r"sizes that divide \(12, 18\).*give stride"),
        (
            (3, 4, 6),
            "logits",
            None,
            r"shape \(3, 4, 6\), expected a floating-point logit for each image and class",
        ),
        ((3, 4, 6), "probabilities", None, ".* sum to 1"),
        ((3, 4), "classes", None, "a whole number"),
        ((3, 1, 12, 18), "segmentation", None, "two or more classes"),
        ((3, 10), "auto", 2, "stride must be None.*got 2"),
    ):
        with raises_for((shape, kind), ValueError, match=message):
            infer_kind(torch.rand(shape) + 1, (12, 18), kind, stride)
    with pytest.raises(
        ValueError, match=r"torch.int64 of shape \(3, 4\), expected floating-point numbers"
    ):
        infer_kind(torch.ones(3, 4, dtype=torch.int64), (12, 18))


@given(st.integers(1, 100), st.integers(0, 2**32))
def test_label_set_codes_are_equal_only_for_equal_sets(num_labels, seed):
    labels = torch.randint(2, (6, num_labels), generator=torch.Generator().manual_seed(seed))
    codes = encode_label_sets(labels)
    assert (codes >= 0).all()
    same = (labels[:, None] == labels[None]).all(dim=2)
    assert torch.equal(codes[:, None] == codes[None], same)


# Images with one lit pixel in column 0 to 5.
POINTS = torch.eye(6)[:, None, None, :]
SHIFTS = [(0, 0), (0, 1), (0, 3)]
COLUMNS = torch.tensor([[(column + right) % 6 for column in range(6)] for _, right in SHIFTS])
SCORES = torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])  # The score of each column.


def measure(function, labels=None, **options):
    return measure_responses(
        function, POINTS, SHIFTS, Movement("circular"), labels=labels, **options
    )


def score(images):
    return images.flatten(1) @ SCORES


def three_scores(images):
    return torch.stack([score(images), -score(images), score(images) - 0.75], dim=1)


LABELS = torch.tensor([0, 0, 0, 1, 1, 0])
BINARY = {
    "(B,)": score,
    "(B, 1)": lambda images: score(images)[:, None],
    "(B, 1, 1, 1)": lambda images: score(images)[:, None, None, None],
    "squeezed": lambda images: score(images).squeeze(),
    "probability": lambda images: score(images).sigmoid(),
    "numpy": lambda images: score(images).numpy(),
    "half": lambda images: score(images).half(),
    "bfloat16": lambda images: {"logits": score(images).bfloat16()},
    "class": lambda images: (score(images) > 0).long(),
    "bool": lambda images: score(images) > 0,
}


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("form", BINARY)
def test_binary_classifier_may_return_any_form(form, batch_size):
    responses = measure(BINARY[form], LABELS, batch_size=batch_size)
    expected = (SCORES[COLUMNS] > 0).long()
    assert torch.equal(not_none(responses.predictions), expected)
    assert torch.equal(not_none(responses.correct), expected == LABELS)
    if form in ("class", "bool"):
        assert torch.equal(responses.error_squared > 0, expected != expected[0])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_probabilities_and_pooled_maps_have_the_predictions_of_logits(batch_size):
    def logits(images):
        return torch.stack([score(images), 0.5 * images[..., 0].flatten(), -score(images)], dim=1)

    labels = torch.tensor([2, 2, 2, 0, 0, 1])
    plain = measure(logits, labels)
    for function in (
        lambda images: logits(images).softmax(1),
        lambda images: logits(images)[..., None, None],
        lambda images: logits(images)[..., None, None].squeeze(),
        lambda images: [logits(images)],
    ):
        found = measure(function, labels, batch_size=batch_size)
        assert torch.equal(not_none(found.predictions), not_none(plain.predictions))


def test_multilabel_predictions_are_compared_as_sets():
    predicted = torch.stack(
        [SCORES > 0, SCORES < 0, SCORES > 0.75], dim=1
    )  # The labels of each column.
    labels = predicted.clone()
    labels[0, 2] = True
    agreement = (predicted[COLUMNS] == predicted[COLUMNS[0]]).all(dim=2)
    correct = (predicted[COLUMNS] == labels).all(dim=2)
    for function, sets in (
        (three_scores, labels),
        (three_scores, labels.float()),
        (lambda images: three_scores(images).sigmoid(), labels.long()),
        (lambda images: three_scores(images)[..., None, None], labels),
    ):
        responses = measure(function, sets, batch_size=5)
        assert responses.output in MULTILABEL
        assert torch.equal(not_none(responses.correct), correct)
        assert torch.equal(not_none(responses.agreement), agreement)
    assert torch.equal(not_none(measure(three_scores, output="multilabel").agreement), agreement)


def test_labels_that_the_model_cannot_predict_are_errors():
    for function, labels, options, message in (
        (score, LABELS + 1, {}, "labels must be classes below 2.*got 2"),
        (three_scores, LABELS + 2, {}, "labels must be classes below 3.*got 3"),
        (three_scores, torch.zeros(6, 2), {}, r"labels must have shape \(6, 3\).*got \(6, 2\)"),
        (
            three_scores,
            LABELS,
            {"output": "multilabel"},
            r"labels must have shape \(6, 3\).*got \(6,\)",
        ),
        (three_scores, torch.full((6, 3), 0.5), {}, r"labels must be .*got other than 0 and 1"),
        (
            lambda images: three_scores(images).softmax(1),
            torch.zeros(6, 3),
            {},
            r"labels must have shape \(6,\).*got \(6, 3\)",
        ),
        (
            lambda images: score(images).long() - 3,
            LABELS,
            {},
            "holds the class -5, expected classes of at least 0",
        ),
    ):
        with raises_for(message, ValueError, match=message):
            measure(function, labels, **options)


def test_unused_labels_and_single_values_have_caveats():
    settings = AuditSettings(shifts=[(0, 1)], parts=(), num_resamples=40)

    def caveat_names(function, labels):
        report = audit(
            function, POINTS.expand(-1, 1, 3, -1).contiguous(), labels, settings=settings
        )
        assert report.failures == ()
        return [caveat.name for caveat in report.caveats]

    assert "labels not used" in caveat_names(lambda images: images, LABELS)
    assert "labels not used" not in caveat_names(lambda images: images, None)
    assert "one value read as two classes" in caveat_names(
        lambda images: images[:, 0, 0] @ SCORES, LABELS
    )
    assert "one value read as two classes" not in caveat_names(
        lambda images: three_scores(images[:, :, :1]), LABELS
    )
    note = "probabilities read as logits"
    assert note in caveat_names(lambda images: three_scores(images[:, :, :1]).sigmoid(), None)
    assert note not in caveat_names(lambda images: three_scores(images[:, :, :1]).softmax(1), None)
    assert note not in caveat_names(lambda images: three_scores(images[:, :, :1]), None)


@pytest.mark.parametrize("form", ["class", "probability", "three_scores"])
def test_all_parts_of_an_audit_accept_all_kinds_of_classifiers(form):
    function = three_scores if form == "three_scores" else BINARY[form]
    labels = torch.randint(2, (40, 3), generator=torch.Generator().manual_seed(0))
    images = torch.rand(40, 1, 1, 6, generator=torch.Generator().manual_seed(0))

    class Model(nn.Module):
        def forward(self, images):
            return function(images - 0.5)

    settings = AuditSettings(shifts=[(0, 1), (0, 2)], num_resamples=40)
    report = audit(
        Model(), images, labels if form == "three_scores" else labels[:, 0], settings=settings
    )
    assert [failure for failure in report.failures if failure.part != "layers"] == []
    assert {"accuracy", "consistency"} <= report.metrics[0].numbers.keys()
    assert len(report.examples) == (0 if form == "three_scores" else 8)
    str(report)
    assert report.responses[0].unpack().output == report.metrics[0].output
    assert set(KINDS) >= {report.metrics[0].output}
    assert math.isfinite(report.metrics[0].numbers["consistency"].value)
