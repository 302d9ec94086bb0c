"""Responses of a model to shifts: the errors and predictions from which metrics are computed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.model_output import KINDS
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, shifts_to_floats
from teka.checks import (
    BOOL_DTYPES,
    INTEGER_DTYPES,
    check_dense_tensor,
    check_instance,
    check_name,
    check_tensor,
)
from teka.errors import wrong_argument, wrong_value

Table = Float[Tensor, "shifts images"]
Mask = Bool[Tensor, "shifts images"]
WITH_ZERO = "a set that contains the zero shift, because shifted and unshifted images are compared"
SINGLE_PRECISION = 2.0**-23
TABLES = (
    "evaluated",
    "error_squared",
    "norm_squared",
    "predictions",
    "probability_change",
    "overlap",
    "cosine_distance",
    "rank",
)


@dataclass(frozen=True, eq=False)
class Responses:
    """Errors and predictions of a model for every image at every shift.

    Most attributes are tables of shape (S, N) for S shifts and N images. Entries for which the
    model was not evaluated are −1 in `predictions` and `rank`, and 0 in all other tables.

    In the formulas, f is the model, x is an image, and T_s x is the image shifted by s. The
    expected output is T_s f(x). For maps, it is the map of the unshifted image, moved by the shift.
    For outputs that should not change, such as logits and features, it is f(x).

    Args:
        movement: How the images were shifted.
        shifts: S shifts, including the zero shift, with one step for each spatial axis, such as
            (dy, dx).
        output: Kind of the output, a name in `teka.audit.model_output.KINDS`.
        evaluated: Mask of the entries for which the model was evaluated.
        error_squared: ‖f(T_s x) − T_s f(x)‖². For maps, only over the cells that are compared.
        norm_squared: ‖T_s f(x)‖² over the same cells.
        labels: Classes of the images, or codes of their label sets
            (`teka.audit.model_output.encode_label_sets`).
        predictions: Predicted classes or codes of label sets, for classifiers.
        probability_change: |p_s(c) − p_0(c)| of the class c that is predicted without a shift, for
            classifiers with class probabilities.
        overlap: Mean intersection over union of the output with the shifted classes or boxes, for
            segmentation and detection.
        cosine_distance: 1 − cos(f(T_s x), f(x)), for features.
        rank: Rank of f(x) among the features of all unshifted images, sorted by their cosine
            similarity to f(T_s x), for features. The nearest image has rank 1.
        epsilon: Machine epsilon of the outputs, or of the images if it is larger.

    >>> import torch
    >>> from teka.audit import Movement, measure_responses
    >>> brightest = lambda images: images.flatten(1)  # predicts the position of the brightest pixel
    >>> images = torch.rand(5, 1, 2, 3)
    >>> responses = measure_responses(brightest, images, [(0, 0), (0, 1)], Movement("circular"))
    >>> responses.predictions.shape, responses.agreement.float().mean(dim=1)
    (torch.Size([2, 5]), tensor([1., 0.]))

    Raises:
        ValueError: A table has the wrong shape, or the shifts do not contain zero.
    """

    movement: Movement
    shifts: CheckedShifts
    output: str
    evaluated: Mask
    error_squared: Table
    norm_squared: Table
    labels: Int[Tensor, " images"] | None = None
    predictions: Int[Tensor, "shifts images"] | None = None
    probability_change: Table | None = None
    overlap: Table | None = None
    cosine_distance: Table | None = None
    rank: Int[Tensor, "shifts images"] | None = None
    epsilon: float = SINGLE_PRECISION

    def __post_init__(self) -> None:
        check_name("output", self.output, KINDS)
        check_instance("movement", self.movement, Movement)
        if not isinstance(self.shifts, Sequence):  # an iterator can be read only once
            raise wrong_value("shifts", self.shifts, "a list of shifts")
        shifts_to_floats("shifts", self.shifts)
        check_tensor("evaluated", self.evaluated, len(self.shifts), "images", dtypes=BOOL_DTYPES)
        for name, table in self.tables().items():
            check_dense_tensor(name, table, *self.evaluated.shape, dtypes=None)
        if self.labels is not None:
            check_dense_tensor("labels", self.labels, self.num_images, dtypes=INTEGER_DTYPES)
        if all(map(any, self.shifts)):
            raise wrong_value("shifts", self.shifts, WITH_ZERO)

    @property
    def num_images(self) -> int:
        """Number of images N."""
        return self.evaluated.shape[1]

    @cached_property
    def zero(self) -> int:
        """Index of the zero shift."""
        return list(map(any, self.shifts)).index(False)

    @cached_property
    def moved(self) -> list[int]:
        """Indices of the nonzero shifts."""
        return [index for index, shift in enumerate(self.shifts) if any(shift)]

    @property
    def complete(self) -> Bool[Tensor, " shifts"]:
        """Mask (S,) of the shifts at which the model was evaluated on all images."""
        return self.evaluated.all(dim=1)

    @cached_property
    def correct(self) -> Mask | None:
        """Mask (S, N) of correct predictions, or None without labels or predictions."""
        if self.predictions is None or self.labels is None:
            return None
        return self.predictions == self.labels

    @cached_property
    def agreement(self) -> Mask | None:
        """Mask (S, N) of predictions that agree with the prediction for the unshifted image.

        It is None if the model is not a classifier.
        """
        return None if self.predictions is None else self.predictions == self.predictions[self.zero]

    @property
    def errors(self) -> tuple[Table, Table] | None:
        """Squared errors and squared norms (S, N) in float64, from which relative errors follow.

        This is None if a relative error is undefined: all expected outputs at a shift are 0, but
        some outputs are not.
        """
        error = self.error_squared.to(torch.float64)
        norm = self.norm_squared.to(torch.float64)
        is_empty = norm.sum(dim=1) == 0
        if bool((is_empty & (error.sum(dim=1) > 0)).any()):
            return None
        # An output that is zero everywhere and does not change has no error.
        return error, torch.where(is_empty[:, None], 1.0, norm)

    def select_complete_shifts(self) -> "Responses":
        """Return a copy with only the shifts at which the model was evaluated on all images.

        Raises:
            ValueError: Some images were not evaluated at the zero shift.
        """
        complete = self.complete
        if not complete[self.zero]:
            expected = "evaluated for all unshifted images"
            raise wrong_argument("responses", "not complete at the zero shift", expected)
        if complete.all():
            return self
        shifts = tuple(itertools.compress(self.shifts, complete))
        tables = {name: table[complete] for name, table in self.tables().items()}
        return replace(self, shifts=shifts, **tables)

    def tables(self) -> dict[str, Tensor]:
        """Return all tables of shape (S, N), by their names."""
        return {name: table for name in TABLES if (table := getattr(self, name)) is not None}


def select_common_shifts(responses: Sequence[Responses]) -> list[Responses]:
    """Return copies with only the shifts at which every model was evaluated on all images."""
    complete = torch.stack([each.complete for each in responses]).all(dim=0)
    return [
        replace(each, evaluated=each.evaluated & complete[:, None]).select_complete_shifts()
        for each in responses
    ]


def check_same_images(first: Responses, second: Responses) -> None:
    """Raise an error if two models were evaluated on different images, labels or shifts.

    Raises:
        ValueError: The number of images, the labels, the shifts or the movements differ.
    """
    for name in ("movement", "shifts", "num_images"):
        mine = getattr(second, name)
        expected = getattr(first, name)
        if mine != expected:
            raise wrong_value(f"second.{name}", mine, f"{expected!r} as for the first model")
    labels = [each.labels.to(torch.int64) for each in (first, second) if each.labels is not None]
    if len(labels) == 2 and not torch.equal(*labels):
        expected = "equal to those of the first model, image by image"
        raise wrong_argument("second.labels", "different labels", expected)
