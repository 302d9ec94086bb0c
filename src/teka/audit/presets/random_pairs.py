"""Whether a classifier answers the same for two randomly moved copies of an image, as the literature asks it."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from teka.audit.function import call_model, check_evaluation_mode
from teka.audit.measure.outputs import infer_output
from teka.errors import wrong_value

Place = tuple[int, int]
Draw = Callable[[np.random.RandomState], Place]
Move = Callable[[Tensor, Place], Tensor]


def whole_numbers(low: int, high: int) -> Draw:
    """Two whole numbers from low to high − 1, as `numpy.random.randint(low, high, 2)` draws them.

    Args:
        low: The lowest number.
        high: One more than the highest.
    """

    def draw(random: np.random.RandomState) -> Place:
        down, right = random.randint(low, high, 2).tolist()
        return down, right

    return draw


def pair_agreement(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    *,
    draw: Draw,
    move: Move,
    passes: int,
    batch_size: int,
    seed: int,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "passes images"]:
    """Whether argmax f is the same at two random places, for every image in every pass.

    All images of a batch share the two draws, as in the sources' code: the first is drawn, then the second, batch after
    batch and pass after pass, by the generator that `numpy.random.seed(seed)` sets.

    Args:
        function: The classifier, images to logits (B, K).
        images: Images (N, C, H, W).
        draw: Two whole numbers from the generator.
        move: The images of a batch at the place that they stand for.
        passes: Passes over the images.
        batch_size: Images that share a draw; the last batch may be smaller.
        seed: Seed of the draws.
        device: Where the images are taken; None leaves them where they are.

    Raises:
        ValueError: A module in training mode, no images, a number below 1, or outputs that are no logits.
    """
    check_evaluation_mode("function", function)
    for argument, number in (("images", len(images)), ("passes", passes), ("batch_size", batch_size)):
        if number < 1:
            raise wrong_value(argument, number, "at least 1")
    random = np.random.RandomState(seed)
    agreement = torch.empty(passes, len(images), dtype=torch.bool)
    for index in range(passes):
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size].to(device)
            first, second = (_answers(function, move(batch, draw(random)), start) for _ in range(2))
            agreement[index, start : start + batch_size] = first == second
    return agreement


def _answers(function: Callable[[Tensor], object], seen: Shaped[Tensor, "batch channels h w"], start: int) -> Tensor:
    logits = call_model(function, seen, lambda: f"on images {start} to {start + len(seen) - 1}")
    infer_output(logits.shape, seen.shape[2:], "logits")
    return logits.argmax(dim=1).cpu()
