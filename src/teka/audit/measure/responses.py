"""What a model answered for every image at every shift, before any statistics."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.model_output import OUTPUTS
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts, read_steps
from teka.checks import (
    BOOL_DTYPES,
    INTEGER_DTYPES,
    check_dense,
    check_instance,
    check_name,
    check_tensor,
)
from teka.errors import wrong_argument, wrong_value

WITH_ZERO = "a set with the zero shift, to which the others are compared"
SINGLE_PRECISION = 2.0**-23
_TABLES = (
    "evaluated",
    "error_squared",
    "norm_squared",
    "predictions",
    "loss",
    "probability_change",
    "divergence",
)
_TABLES += ("overlap", "cosine_distance", "rank")


@dataclass(frozen=True, eq=False)
class Responses:
    """What a model answered for every image at every shift; entries that are not there hold 0, or −1 as predictions.

    >>> import torch
    >>> from teka.audit import Movement, measure_responses
    >>> brightest = lambda images: images.flatten(1)  # which pixel it is
    >>> responses = measure_responses(brightest, torch.rand(5, 1, 2, 3), [(0, 0), (0, 1)], Movement("circular"))
    >>> responses.predictions.shape, responses.agreement.float().mean(dim=1)
    (torch.Size([2, 5]), tensor([1., 0.]))
    """

    movement: Movement
    shifts: CheckedShifts  # S, one step for each spatial axis; of images, (dy, dx). The zero shift is among them
    output: str  # a kind of `teka.audit.model_output.KINDS`
    evaluated: Bool[Tensor, "shifts images"]  # which entries are there
    # ‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² over the cells that are compared; for logits and features T_s f(x) = f(x).
    error_squared: Float[Tensor, "shifts images"]
    norm_squared: Float[Tensor, "shifts images"]
    # The images' classes, or the codes of their sets of labels (`teka.audit.model_output.encode_label_sets`).
    labels: Int[Tensor, " images"] | None = None
    predictions: Int[Tensor, "shifts images"] | None = None  # likewise; None but of classifiers
    # It and the following are None where the model gives no probabilities of classes.
    loss: Float[Tensor, "shifts images"] | None = (
        None  # cross-entropy of the label in nats; None without labels
    )
    probability_change: Float[Tensor, "shifts images"] | None = (
        None  # |p_s(c) − p_0(c)|, c the top class unshifted
    )
    divergence: Float[Tensor, "shifts images"] | None = None  # KL(p_0 ‖ p_s) in nats
    # Mean intersection over union with the classes or boxes moved along; None of other outputs.
    overlap: Float[Tensor, "shifts images"] | None = None
    # 1 − cos(f(T_s x), f(x)); it and the next are None but of features.
    cosine_distance: Float[Tensor, "shifts images"] | None = None
    rank: Int[Tensor, "shifts images"] | None = (
        None  # of f(x) among all images' by cosine to f(T_s x), from 1 on
    )
    num_values: int | None = None  # of a classifier for each image; None where it is not known
    calls: int = 0  # of the model
    seconds: float = 0.0  # wall time of the measurement
    forward_seconds: float = 0.0  # that within the model
    epsilon: float = (
        SINGLE_PRECISION  # the machine epsilon of the outputs, or of the images if theirs is larger
    )

    def __post_init__(self) -> None:
        check_name("output", self.output, OUTPUTS)
        check_instance("movement", self.movement, Movement)
        if not isinstance(self.shifts, Sequence):  # an iterator can be read only once
            raise wrong_value("shifts", self.shifts, "a list of shifts")
        read_steps("shifts", self.shifts)
        for name in (*_TABLES, "labels"):
            if getattr(self, name) is not None:
                check_dense(name, getattr(self, name))
        check_tensor("evaluated", self.evaluated, len(self.shifts), "images", dtypes=BOOL_DTYPES)
        for name in _TABLES[1:]:
            if getattr(self, name) is not None or name in ("error_squared", "norm_squared"):
                check_tensor(name, getattr(self, name), *self.evaluated.shape, dtypes=None)
        if self.labels is not None:
            check_tensor("labels", self.labels, self.num_images, dtypes=INTEGER_DTYPES)
        if all(any(shift) for shift in self.shifts):
            raise wrong_value("shifts", self.shifts, WITH_ZERO)

    @property
    def num_images(self) -> int:
        """Number of images N."""
        return self.evaluated.shape[1]

    @cached_property
    def zero(self) -> int:
        """Index of the zero shift."""
        return next(index for index, shift in enumerate(self.shifts) if not any(shift))

    @cached_property
    def moved(self) -> list[int]:
        """Indices of all shifts but zero."""
        return [index for index, shift in enumerate(self.shifts) if any(shift)]

    def along(self, axis: int) -> dict[int | float, int]:
        """Index of each shift that is zero on every other axis, by its step along this one."""
        num_axes = len(self.shifts[0])
        if not -num_axes <= axis < num_axes:
            raise wrong_value("axis", axis, f"one of {num_axes} spatial axes, counted from 0")
        axis %= num_axes
        shifts = enumerate(self.shifts)
        return {
            shift[axis]: row for row, shift in shifts if not any(shift[:axis] + shift[axis + 1 :])
        }

    @property
    def complete(self) -> Bool[Tensor, " shifts"]:
        """Shifts at which every image was evaluated."""
        return self.evaluated.all(dim=1)

    @cached_property
    def correct(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether each answer is correct, which −1 never is; None without labels or logits."""
        return (
            None
            if self.predictions is None or self.labels is None
            else self.predictions == self.labels
        )

    @cached_property
    def agreement(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether each image is answered as it is unshifted; None without logits."""
        return None if self.predictions is None else self.predictions == self.predictions[self.zero]

    @cached_property
    def retrieved(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether the features are nearest to those of the image itself unshifted; None of other outputs."""
        return None if self.rank is None else self.rank == 1

    @property
    def errors(
        self,
    ) -> tuple[Float[Tensor, "shifts images"], Float[Tensor, "shifts images"]] | None:
        """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image; None where an error has no norm to be compared with."""
        error, norm = self.error_squared.to(torch.float64), self.norm_squared.to(torch.float64)
        is_empty = norm.sum(dim=1) == 0
        if bool((is_empty & (error.sum(dim=1) > 0)).any()):
            return None
        # An output that is zero everywhere and stays so has no error.
        return error, torch.where(is_empty[:, None], 1.0, norm)

    @property
    def is_decided(self) -> bool:
        """Whether every image was answered wrongly at some shift, or evaluated at all of them; needs labels."""
        return bool((self.evaluated.all(dim=0) | self._was_wrong).all())

    @property
    def correct_at_every_shift(self) -> Bool[Tensor, " images"] | None:
        """Whether each image is correct at every shift, or at the complete ones if some are not decided yet."""
        if self.correct is None:
            return None
        return ~self._was_wrong if self.is_decided else self.correct[self.complete].all(dim=0)

    @property
    def _was_wrong(self) -> Bool[Tensor, " images"]:
        assert self.correct is not None
        return (self.evaluated & ~self.correct).any(dim=0)

    def take_complete(self) -> "Responses":
        """The responses at the shifts that are complete."""
        complete = self.complete
        if not complete[self.zero]:
            raise wrong_argument(
                "responses", "not complete at the zero shift", "every image at the zero shift"
            )
        if complete.all():
            return self
        shifts = tuple(itertools.compress(self.shifts, complete))
        tables = {
            name: table[complete] for name in _TABLES if (table := getattr(self, name)) is not None
        }
        return replace(self, shifts=shifts, **tables)

    def take_images(self, chosen: Bool[Tensor, " images"]) -> "Responses":
        """The responses to some of the images."""
        tables = {
            name: table[:, chosen] for name in _TABLES if (table := getattr(self, name)) is not None
        }
        return replace(self, labels=None if self.labels is None else self.labels[chosen], **tables)

    def join(self, other: "Responses") -> "Responses":
        """The responses to these images and then to others, moved alike."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _TABLES}
        joined = {
            name: torch.cat(pair, dim=1) for name, pair in pairs.items() if pair[0] is not None
        }
        if self.labels is not None and other.labels is not None:
            joined["labels"] = torch.cat([self.labels, other.labels])
        spent = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("calls", "seconds", "forward_seconds")
        }
        return replace(self, **joined, **spent)

    def relative_error(self) -> Float[Tensor, "shifts images"]:
        """‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖ of each image, 0 where both are 0."""
        return (self.error_squared / self.norm_squared).where(self.error_squared != 0, 0.0).sqrt()


def take_common(responses: Sequence[Responses]) -> list[Responses]:
    """The responses of several models to the same images at the shifts that are complete for all of them."""
    complete = torch.stack([each.complete for each in responses]).all(dim=0)
    return [
        replace(each, evaluated=each.evaluated & complete[:, None]).take_complete()
        for each in responses
    ]


def check_same_images(argument: str, first: Responses, other: Responses) -> None:
    """Check that responses, given as an argument of this name, are to the same images as the first, moved alike."""
    for name in ("movement", "shifts", "num_images"):
        mine, expected = getattr(other, name), getattr(first, name)
        if mine != expected:
            raise wrong_value(
                f"{argument}.{name}", mine, f"that of the first responses, {expected!r}"
            )
    labels = [each.labels.to(torch.int64) for each in (first, other) if each.labels is not None]
    if len(labels) == 2 and not torch.equal(*labels):
        raise wrong_argument(
            f"{argument}.labels",
            "others",
            "those of the first responses: the same images in one order",
        )
