from types import SimpleNamespace

import pytest
import torch
import transformers
from tests.audit.adapters.tiny_vit import quiet

from teka.audit import AuditSettings, audit
from teka.audit.adapters import Reading, load
from teka.audit.adapters.answers import read_detections, read_queries
from teka.audit.adapters.case import make_case

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
    "features": lambda: transformers.ViTModel(transformers.ViTConfig(**TINY, **{**SIZES, "image_size": 32})),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Sixty pictures of noise, of 32 × 32, in two classes."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(0)
    for number in range(60):
        (folder / f"{number % 2}").mkdir(exist_ok=True)
        levels = torch.randint(256, (32, 32, 3), dtype=torch.uint8).numpy()
        Image.fromarray(levels).save(folder / f"{number % 2}" / f"{number}.png")
    return folder


@pytest.mark.parametrize("output", MODELS)
def test_a_model_of_transformers_is_measured_by_what_it_is_for(output, pictures, tmp_path):
    torch.manual_seed(0)
    with quiet():
        model = MODELS[output]()
        if output == "boxes":  # that are found: the scores of one class above all others
            model.class_labels_classifier.layers[-1].bias.data = torch.tensor([0.0, 9.0, 0.0, 0.0])
        model.save_pretrained(tmp_path / "model")
        subject = load(str(tmp_path / "model"), Reading(input_size=32))
    assert subject.output == output
    settings = AuditSettings(shifts=[(0, 1), (2, 0)], parts=(), num_examples=0, num_resamples=40)
    case = make_case(subject, str(pictures), settings)
    assert case.labels is None
    report = audit(case.function, case.images, settings=case.settings, **case.known)
    assert report.failures == ()
    expected = {"segmentation": "overlap", "boxes": "overlap", "features": "retrieval"}[output]
    assert 0 <= report.metrics[0].numbers[expected].value <= 1


def test_a_segmentation_is_enlarged_to_the_images(tmp_path):
    with quiet():
        MODELS["segmentation"]().save_pretrained(tmp_path)
        maps = load(str(tmp_path)).function(torch.rand(2, 3, 32, 64))
    assert isinstance(maps, torch.Tensor)
    assert maps.shape == (2, 3, 32, 64)


def test_boxes_are_in_pixels_and_scores_leave_out_no_object():
    images = torch.zeros(1, 3, 10, 20)
    answer = SimpleNamespace(
        logits=torch.tensor([[[0.0, 2.0, 0.0]]]), pred_boxes=torch.tensor([[[0.5, 0.5, 0.2, 0.4]]])
    )
    (box,) = read_queries(answer, images, 2)[0]
    assert box[:4].tolist() == pytest.approx([8, 3, 12, 7])
    assert box[4:].tolist() == pytest.approx(torch.tensor([0.0, 2.0, 0.0]).softmax(0)[:2].tolist())
    (box,) = read_queries(answer, images, 3)[0]
    assert box[4:].tolist() == pytest.approx([0.5, torch.tensor(2.0).sigmoid().item(), 0.5])


def test_of_a_list_of_detections_there_is_one_row_for_each_and_the_rest_is_empty():
    found = {"boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]]), "scores": torch.tensor([0.3, 0.8])}
    found["labels"] = torch.tensor([1, 0])
    none = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    boxes = read_detections([found, none], torch.zeros(2, 3, 8, 8), 2)
    assert boxes.shape == (2, 300, 6)
    assert boxes[0, :2].tolist() == [pytest.approx([4, 5, 6, 7, 0.8, 0]), pytest.approx([0, 1, 2, 3, 0, 0.3])]
    assert boxes[0, 2:].abs().sum() == boxes[1].abs().sum() == 0
