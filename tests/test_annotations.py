"""Checks of annotations, which run in all tests."""

from typing import Any, cast

import pytest
import torch
from jaxtyping import TypeCheckError

from teka import Grid
from teka.functional import SquaredRelu, attention
from tests.annotations import annotations_unchecked


@pytest.fixture(autouse=True)
def first_calls() -> None:
    """Check the next calls again, because earlier tests may have used up the checked calls."""
    for function in (attention, SquaredRelu.num_features):
        cast(Any, function).check_again()


def test_inconsistent_shapes_are_found_by_annotations():
    query, value = torch.zeros(1, 2, 15, 4), torch.zeros(1, 3, 15, 4)
    with pytest.raises(TypeCheckError, match="value"):
        attention(query, query, value, kernel="squared_relu", grid=Grid((3, 5)))


def test_wrong_types_are_found_by_annotations():
    wrong: Any = "four"
    with pytest.raises(Exception, match=r"(?s)num_features.*four.*int"):
        SquaredRelu().num_features(wrong)


def test_checks_can_be_switched_off():
    query, value = torch.zeros(1, 2, 15, 4), torch.zeros(1, 3, 15, 4)
    wrong: Any = "four"
    with annotations_unchecked():
        assert SquaredRelu().num_features(wrong) == wrong
        with pytest.raises(ValueError, match="value"):
            attention(query, query, value, kernel="squared_relu", grid=Grid((3, 5)))
