"""What a model answered for every image at every shift, before any statistics."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.movement import Movement
from teka.errors import wrong_value

OUTPUTS = ("logits", "features", "dense")


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
        probability_change: |p_s(c) − p_0(c)|, c the top class of the image not moved, (S, N); None without logits.
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
        if not any(not any(shift) for shift in self.shifts):
            raise wrong_value("shifts", self.shifts, "a set with the zero shift, to which the others are compared")

    @property
    def num_images(self) -> int:
        """Number of images N."""
        return self.evaluated.shape[1]

    @property
    def zero(self) -> int:
        """Index of the zero shift."""
        return next(index for index, shift in enumerate(self.shifts) if not any(shift))

    @property
    def complete(self) -> Bool[Tensor, " shifts"]:
        """Shifts at which every image was evaluated."""
        return self.evaluated.all(dim=1)

    @property
    def correct(self) -> Bool[Tensor, "shifts images"] | None:
        """Whether each answer is right; False where it was not evaluated; None without labels or logits."""
        if self.predictions is None or self.labels is None:
            return None
        return (self.predictions == self.labels) & self.evaluated

    def take_complete(self) -> "Responses":
        """The responses at the shifts that are complete.

        Raises:
            ValueError: The zero shift is not complete.
        """
        rows = self.complete.nonzero().flatten()
        if self.zero not in rows.tolist():
            raise wrong_value("responses", "not complete at the zero shift", "every image at the zero shift")

        def taken(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return Responses(
            self.movement,
            tuple(self.shifts[row] for row in rows.tolist()),
            self.output,
            self.evaluated[rows],
            self.error_squared[rows],
            self.norm_squared[rows],
            self.labels,
            taken(self.predictions),
            taken(self.loss),
            taken(self.probability_change),
            taken(self.divergence),
            self.calls,
            self.seconds,
            self.forward_seconds,
        )

    def relative_error(self) -> Float[Tensor, "shifts images"]:
        """‖f(T_s x) − T_s f(x)‖ / ‖T_s f(x)‖ of each image, 0 where both are 0."""
        ratio = self.error_squared / self.norm_squared
        return torch.where(self.error_squared == 0, torch.zeros_like(ratio), ratio).sqrt()
