"""What a model answered for every image at every shift, before any statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.movement import Movement
from teka.errors import wrong_value

OUTPUTS = ("logits", "features", "dense")
_TABLES = ("evaluated", "error_squared", "norm_squared", "predictions", "loss", "probability_change", "divergence")


@dataclass(frozen=True, eq=False)
class Responses:
    """What a model answered for every image at every shift, image by image, on the CPU.

    Entries that were not evaluated, because time ran out or a search had no need of them, are False in `evaluated` and
    hold 0, or −1 in `predictions`.

    Args:
        movement: How the images were moved.
        shifts: The set of shifts S, one step for each spatial axis; of images, (dy, dx). The zero shift is among them.
        output: What the model gives: "logits" (B, K), "features" (B, …) that should stay, or "dense" maps
            (B, C', *S') that should move along.
        evaluated: Which entries are there, (S, N).
        error_squared: ‖f(T_s x) − T_s f(x)‖² of each image over the cells that are compared, (S, N); for logits and
            features T_s f(x) = f(x).
        norm_squared: ‖T_s f(x)‖² over the same cells, (S, N).
        labels: The images' classes (N,), or None.
        predictions: Classes answered, (S, N); None unless the output is logits.
        loss: Cross-entropy of the label in nats, (S, N); None without logits or labels.
        probability_change: |p_s(c) − p_0(c)|, c the top class of the unshifted image, (S, N); None without logits.
        divergence: KL(p_0 ‖ p_s) in nats, (S, N); None without logits.
        calls: Number of calls of the model.
        seconds: Wall time of the measurement.
        forward_seconds: Wall time within the model.
    """

    movement: Movement
    shifts: tuple[tuple[int | float, ...], ...]
    output: str
    evaluated: Bool[Tensor, "shifts images"]
    error_squared: Float[Tensor, "shifts images"]
    norm_squared: Float[Tensor, "shifts images"]
    labels: Int[Tensor, " images"] | None = None
    predictions: Int[Tensor, "shifts images"] | None = None
    loss: Float[Tensor, "shifts images"] | None = None
    probability_change: Float[Tensor, "shifts images"] | None = None
    divergence: Float[Tensor, "shifts images"] | None = None
    calls: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise wrong_value("output", self.output, f"one of {', '.join(OUTPUTS)}")
        if all(any(shift) for shift in self.shifts):
            raise wrong_value("shifts", self.shifts, "a set with the zero shift, to which the others are compared")

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
        return {shift[axis]: row for row, shift in shifts if not any(shift[:axis] + shift[axis + 1 :])}

    @property
    def complete(self) -> Bool[Tensor, " shifts"]:
        """Shifts at which every image was evaluated."""
        return self.evaluated.all(dim=1)

    @cached_property
    def correct(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether each answer is correct; False where it was not evaluated; None without labels or logits."""
        if self.predictions is None or self.labels is None:
            return None
        return (self.predictions == self.labels) & self.evaluated

    @cached_property
    def agreement(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether each image is answered as it is unshifted; None without logits."""
        return None if self.predictions is None else self.predictions == self.predictions[self.zero]

    @property
    def errors(self) -> tuple[Float[Tensor, "shifts images"], Float[Tensor, "shifts images"]] | None:
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
        """Whether each image is answered correctly at every shift; None without labels or logits.

        An image that was answered wrongly once is decided without its other shifts. Where all images are decided, the
        answer is for all shifts; else for the shifts that are complete.
        """
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
            raise wrong_value("responses", "not complete at the zero shift", "every image at the zero shift")
        if complete.all():
            return self
        shifts = tuple(shift for shift, done in zip(self.shifts, complete.tolist(), strict=True) if done)
        tables = {name: table[complete] for name in _TABLES if (table := getattr(self, name)) is not None}
        return replace(self, shifts=shifts, **tables)

    def take_images(self, chosen: Bool[Tensor, " images"]) -> "Responses":
        """The responses to some of the images."""
        tables = {name: table[:, chosen] for name in _TABLES if (table := getattr(self, name)) is not None}
        return replace(self, labels=None if self.labels is None else self.labels[chosen], **tables)

    def relative_error(self) -> Float[Tensor, "shifts images"]:
        """‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖ of each image, 0 where both are 0."""
        ratio = self.error_squared / self.norm_squared
        return torch.where(self.error_squared == 0, torch.zeros_like(ratio), ratio).sqrt()


def take_common(responses: Sequence[Responses]) -> list[Responses]:
    """The responses of several models to the same images at the shifts that are complete for all of them."""
    complete = torch.stack([each.complete for each in responses]).all(dim=0)
    return [replace(each, evaluated=each.evaluated & complete[:, None]).take_complete() for each in responses]


def check_same_images(argument: str, first: Responses, other: Responses) -> None:
    """Check that responses, given as an argument of this name, are to the same images as the first, moved alike."""
    for name in ("movement", "shifts", "num_images"):
        mine, expected = getattr(other, name), getattr(first, name)
        if mine != expected:
            raise wrong_value(f"{argument}.{name}", mine, f"that of the first responses, {expected!r}")
    labels = [each.labels.to(torch.int64) for each in (first, other) if each.labels is not None]
    if len(labels) == 2 and not torch.equal(*labels):
        raise wrong_value(f"{argument}.labels", "others", "those of the first responses: the same images in one order")
