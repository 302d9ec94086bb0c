import pytest
import torch

from teka.audit.adapters import Subject
from teka.audit.adapters.match_labels import match_labels

LABELS = torch.tensor([2, 0, 1, 1])


def subject(names: tuple[str, ...] | None, num_classes: int | None) -> Subject:
    return Subject("m", "onnx", lambda images: images, class_names=names, num_classes=num_classes)


def test_names_that_the_model_knows_are_matched_by_name():
    model = subject(("dog", "cat", "owl", "ant", "bee"), 5)
    assert match_labels(LABELS, 3, ("ant", "cat", "dog"), model).tolist() == [0, 3, 1, 1]


def test_without_names_as_many_classes_are_the_same_classes():
    assert match_labels(LABELS, 3, None, subject(None, 3)).tolist() == LABELS.tolist()
    assert match_labels(LABELS, 3, ("x", "y", "z"), subject(("a", "b", "c"), 3)).tolist() == LABELS.tolist()
    assert match_labels(LABELS, 3, None, subject(None, None)).tolist() == LABELS.tolist()


def test_another_number_of_classes_is_an_error_that_says_both():
    with pytest.raises(ValueError, match="is 3, expected 5, the classes of m"):
        match_labels(LABELS, 3, ("ant", "cat", "fox"), subject(("dog", "cat", "owl", "ant", "bee"), 5))
    with pytest.raises(ValueError, match="expected 2"):
        match_labels(LABELS, 3, None, subject(None, 2))
