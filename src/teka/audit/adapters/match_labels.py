"""Labels of data as classes of a model."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from teka.audit.adapters.subject import Subject
from teka.errors import wrong_value


def match_labels(
    labels: Int[Tensor, " images"], num_classes: int, class_names: Sequence[str] | None, subject: Subject
) -> Int[Tensor, " images"]:
    """The labels as places among a model's logits.

    Where both have names and every name of the data's is one of the model's, they are matched by name; else label k is
    the model's class k, if it has as many classes as the data.

    Args:
        labels: Classes of the images, 0 to num_classes − 1.
        num_classes: Number of the data's classes.
        class_names: Names of the data's classes, if they have any.
        subject: The model.

    Raises:
        ValueError: The model has another number of classes, and the names do not say which are which.
    """
    known = subject.class_names
    if known is not None and class_names is not None and set(class_names) <= set(known):
        places = torch.tensor([known.index(name) for name in class_names])
        return places[labels]
    if subject.num_classes not in (None, num_classes):
        expected = f"{subject.num_classes}, the classes of {subject.name}, or names that are among its own"
        raise wrong_value("the number of the data's classes", num_classes, expected)
    return labels
