"""Images, models with known predictions, and helpers for the tests of measurements."""

from typing import TypeVar

import torch

HEIGHT, WIDTH = 11, 13
IMAGES = torch.rand(
    5, 2, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
LABELS = torch.tensor([0, 1, 2, 1, 0])

Value = TypeVar("Value")


def not_none(value: Value | None) -> Value:
    """Return a value, and assert that it is not None."""
    assert value is not None
    return value


def images_of_columns(columns):
    """Return one image for each column, with one lit pixel in that column and the middle row."""
    images = torch.zeros(len(columns), 1, HEIGHT, WIDTH, dtype=torch.float64)
    images[torch.arange(len(columns)), 0, HEIGHT // 2, torch.tensor(columns)] = 1.0
    return images


def column_logits(images):
    """Return logits whose predicted class is the column of the lit pixel."""
    return images.sum((1, 2))


def linear_logits(images):
    """Return the logits of three classes from a fixed random projection of the pixels."""
    weights = torch.rand(
        2 * HEIGHT * WIDTH, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return images.flatten(1) @ (weights - 0.5)


class CountingModel:
    """Model that records the size of every batch."""

    def __init__(self, model):
        self.model, self.sizes = model, []

    def __call__(self, images):
        self.sizes.append(len(images))
        return self.model(images)


class FailingModel(CountingModel):
    """Model that raises an error in one call."""

    def __init__(self, model, call, error):
        super().__init__(model)
        self.call, self.error = call, error

    def __call__(self, images):
        if len(self.sizes) == self.call:
            raise self.error
        return super().__call__(images)


def assert_same_responses(first, second):
    assert (first.shifts, first.output, first.movement) == (
        second.shifts,
        second.output,
        second.movement,
    )
    for name in ("evaluated", "predictions", "error_squared", "norm_squared"):
        first_value, second_value = getattr(first, name), getattr(second, name)
        if first_value is None:
            assert second_value is None
        else:
            torch.testing.assert_close(first_value, second_value, rtol=1e-12, atol=1e-12)


def relative_errors(responses):
    """Return the relative error of each image at each shift, 0 where the output is 0."""
    error = responses.error_squared / responses.norm_squared
    return error.where(responses.error_squared != 0, 0.0).sqrt()
