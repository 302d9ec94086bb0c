from collections.abc import Callable
from typing import Any

import pytest
import torch

from teka.audit.measure.compare_outputs import compare_features, compare_invariant_outputs
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement

CIRCULAR = Movement("circular")


@pytest.fixture
def respond() -> Callable[..., Responses]:
    """Return a function that makes responses from predictions (S, N), with zero errors by default."""

    def make_responses(shifts, predictions, labels=None, **tables):
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

    return make_responses


@pytest.fixture
def measure() -> Callable[..., Responses]:
    """Return a function that makes responses from logits (S, N, K), with all optional tables."""

    def make_responses(shifts, logits, labels):
        zero = next(index for index, shift in enumerate(shifts) if not any(shift))
        columns = torch.arange(logits.shape[1])
        tables: list[dict[str, Any]] = [
            compare_invariant_outputs(shifted, logits[zero], "logits")
            | compare_features(shifted, logits[zero], columns)
            for shifted in logits
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
