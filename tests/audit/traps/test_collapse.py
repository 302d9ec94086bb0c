import pytest
import torch
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.traps import chance, collapse


def responses(predictions: Tensor, labels: Tensor | None) -> Responses:
    shifts = tuple((0, step) for step in range(len(predictions)))
    zeros = torch.zeros(predictions.shape, dtype=torch.float64)
    evaluated = torch.ones(predictions.shape, dtype=torch.bool)
    return Responses(Movement("circular"), shifts, "logits", evaluated, zeros, zeros + 1, labels, predictions)


def test_a_constant_predictor_is_found():
    labels = torch.arange(30) % 3
    (trap,) = collapse(responses(torch.ones(4, 30, dtype=torch.int64), labels))
    assert trap.name == "constant predictor"
    assert trap.severity == "invalidates"
    assert "100.0% of all answers are class 1, and 33.3% of the images are of that class" in trap.message


def test_nearly_all_answers_alike_are_a_collapse():
    predictions = torch.ones(4, 30, dtype=torch.int64)
    predictions[0, 0] = 0
    (trap,) = collapse(responses(predictions, torch.arange(30) % 3))
    assert trap.name == "collapsed predictions"


def test_images_of_one_class_limit_what_a_flat_curve_says():
    (trap,) = collapse(responses(torch.ones(4, 30, dtype=torch.int64), torch.ones(30, dtype=torch.int64)))
    assert (trap.name, trap.severity) == ("one class", "limits")


def test_answers_of_many_classes_are_no_trap():
    labels = torch.arange(30) % 3
    assert collapse(responses(labels.expand(4, -1), labels)) == ()


def test_without_labels_a_constant_is_still_found():
    (trap,) = collapse(responses(torch.ones(4, 30, dtype=torch.int64), None))
    assert trap.name == "constant predictor"


def test_responses_without_classes_are_refused():
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    dense = Responses(Movement("circular"), ((0, 0),), "dense", torch.ones(1, 2, dtype=torch.bool), zeros, zeros + 1)
    with pytest.raises(ValueError, match="'dense', expected 'logits'"):
        collapse(dense)


def test_a_model_at_chance_is_found_and_a_better_one_not():
    labels = torch.arange(300) % 3
    (trap,) = chance(responses((labels * 0)[None].expand(2, -1), labels))
    assert trap.severity == "invalidates"
    assert "33.3% of the images are answered rightly" in trap.message
    assert chance(responses(labels.expand(2, -1), labels)) == ()
    assert chance(responses(labels.expand(2, -1), None)) == ()


def test_chance_is_not_asked_of_images_of_one_class():
    ones = torch.ones(30, dtype=torch.int64)
    assert chance(responses(ones.expand(2, -1), ones)) == ()
