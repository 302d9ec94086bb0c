"""What models of other libraries answer, as the tensor that an audit measures: logits, maps, boxes or features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from teka.audit.function import logits_of

Images = Float[Tensor, "batch channels height width"]
Boxes = Float[Tensor, "batch boxes numbers"]
MOST_BOXES = 300  # of an image, those of the highest scores, where a library gives as many as it finds


@dataclass(frozen=True)
class Task:
    """What models are made for: which output an audit measures, and how it is read out of an answer."""

    words: str  # what such a model is
    output: str  # as of `teka.audit.AuditSettings`
    read: Callable[..., object]  # of an answer, the images, and the number of classes
    takes_lists: bool = False  # of images, in place of batches


def read_logits(answer: Any, images: Images, num_classes: int | None = None) -> object:
    """The logits, where there are any, else the answer as it is."""
    return logits_of(answer)


def read_maps(answer: Any, images: Images, num_classes: int | None = None) -> Float[Tensor, "batch classes *sizes"]:
    """Logits of every pixel, "logits" or "out", enlarged to the images as the libraries do before they take classes."""
    maps = answer["out" if "out" in answer else "logits"]
    return interpolate(maps, size=tuple(images.shape[2:]), mode="bilinear", align_corners=False)


def read_queries(answer: Any, images: Images, num_classes: int | None = None) -> Boxes:
    """Boxes in pixels and scores of `.pred_boxes`, middles and sizes in shares of the image, and of `.logits`.

    Where there is one logit more than classes, it is that of no object (DETR, YOLOS); else classes are apart (RT-DETR).
    """
    logits, height, width = answer.logits, *images.shape[2:]
    no_object = num_classes is not None and logits.shape[-1] == num_classes + 1
    scores = logits.softmax(dim=-1)[..., :-1] if no_object else logits.sigmoid()
    middle, half = answer.pred_boxes[..., :2], answer.pred_boxes[..., 2:] / 2
    corners = torch.cat([middle - half, middle + half], dim=-1)
    return torch.cat([corners * corners.new_tensor([width, height] * 2), scores], dim=-1)


def read_detections(answer: Sequence[Any], images: Images, num_classes: int | None = None) -> Boxes:
    """Boxes and scores of torchvision: for each image its "boxes", "scores" and "labels", the others of score 0."""
    classes = num_classes or 1 + max([int(one["labels"].max()) for one in answer if len(one["labels"])], default=0)
    boxes = images.new_zeros(len(answer), MOST_BOXES, 4 + classes)
    for row, one in zip(boxes, answer, strict=True):
        best = one["scores"].argsort(descending=True)[:MOST_BOXES]
        row[: len(best), :4] = one["boxes"][best]
        row[torch.arange(len(best)), 4 + one["labels"][best]] = one["scores"][best]
    return boxes


def read_features(answer: Any, images: Images, num_classes: int | None = None) -> Float[Tensor, "batch features"]:
    """`.pooler_output`, or the first token's last hidden state, as features of a whole image."""
    pooled = getattr(answer, "pooler_output", None)
    return answer.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


CLASSIFIER = Task("an image classifier", "auto", read_logits)
SEGMENTER = Task("a model of semantic segmentation", "segmentation", read_maps)
ENCODER = Task("an encoder of images", "features", read_features)
DETECTOR = Task("a detector of objects", "boxes", read_queries)
BOX_LISTER = Task("a detector of objects", "boxes", read_detections, takes_lists=True)
