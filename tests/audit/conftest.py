from collections.abc import Callable
from typing import Any

import pytest
import torch

from teka.audit.measure.outputs import compare_vectors, feature_distances
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement

CIRCULAR = Movement("circular")


@pytest.fixture
def respond() -> Callable[..., Responses]:
    """Responses with given predictions (S, N) and, if given, labels; every table that follows from nothing is zero."""

    def made(shifts, predictions, labels=None, **tables):
        predictions = torch.as_tensor(predictions)
        zeros = torch.zeros(predictions.shape)
        tables = {"error_squared": zeros, "norm_squared": zeros + 1, **tables}
        return Responses(
            movement=CIRCULAR,
            shifts=tuple(shifts),
            output="logits",
            evaluated=tables.pop("evaluated", torch.ones(predictions.shape, dtype=torch.bool)),
            labels=None if labels is None else torch.as_tensor(labels),
            predictions=predictions,
            **tables,
        )

    return made


@pytest.fixture
def measure() -> Callable[..., Responses]:
    """Responses as measured of random logits (S, N, K), one for each shift, with every table that any output has."""

    def make_responses(shifts, logits, labels):
        zero = next(index for index, shift in enumerate(shifts) if not any(shift))
        columns = torch.arange(logits.shape[1])
        tables: list[dict[str, Any]] = [
            compare_vectors(each, logits[zero], "logits")
            | feature_distances(each, logits[zero], columns)
            for each in logits
        ]
        stacked: dict[str, Any] = {
            name: torch.stack([table[name] for table in tables]) for name in tables[0]
        }
        return Responses(
            movement=CIRCULAR,
            shifts=tuple(shifts),
            output="logits",
            evaluated=torch.ones(logits.shape[:2], dtype=torch.bool),
            labels=labels,
            overlap=1 / (1 + (logits - logits[zero]).norm(dim=2)),
            **stacked,
        )

    return make_responses
