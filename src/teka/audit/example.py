"""Images that show what an audit found, with the model's answer at every shift."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.function import call_model
from teka.audit.measure.responses import Responses


@dataclass(frozen=True)
class Example:
    """One image and what the model answered at every shift (dy, dx), with the probability it gave that class."""

    mode: str
    index: int  # among the images
    label: int | None
    image: str  # levels of the placed image before any shift, bytes of shape (H, W, C) in base64
    height: int
    width: int
    channels: int  # 1 or 3
    shifts: tuple[tuple[int | float, ...], ...]
    predictions: tuple[int, ...]
    probabilities: tuple[float, ...]


def worst_images(responses: Responses, number: int) -> tuple[int, ...]:
    """Indices of so many images whose answer changes at most shifts, those that are correct unshifted first."""
    if responses.predictions is None:
        return ()
    changed = ((responses.predictions != responses.predictions[responses.zero]) & responses.evaluated).sum(dim=0)
    correct = responses.correct
    right = torch.zeros_like(changed) if correct is None else correct[responses.zero].to(changed)
    # One that was correct has something to lose; ties go to the earlier image.
    order = torch.argsort(changed + right * (changed > 0) * responses.evaluated.shape[0], descending=True, stable=True)
    return tuple(order[:number].tolist())


def encode_levels(image: Float[Tensor, "channels height width"]) -> str:
    """An image's levels as bytes (H, W, C) in base64, of C other than 1 or 3 the mean over the channels.

    Values outside [0, 1] are spread over their own range.
    """
    shown = image if image.shape[0] in (1, 3) else image.mean(dim=0, keepdim=True)
    low, high = (bound.item() for bound in torch.aminmax(shown.double()))
    if low < 0 or high > 1:
        shown = (shown - low) / max(high - low, 1e-12)
    levels = (shown.double() * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return base64.b64encode(levels.cpu().numpy().tobytes()).decode("ascii")


def make_examples(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    responses: Responses,
    indices: Iterable[int],
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
) -> tuple[Example, ...]:
    """Some of the images, with a classifier's answer and its probability at every shift; none of another output."""
    movement, examples = responses.movement, []
    rows = responses.complete.nonzero().flatten().tolist()
    shifts = tuple(responses.shifts[row] for row in rows)
    for index in indices if responses.predictions is not None else ():
        placed = movement.place(images[index : index + 1].to(device))
        answers, shares = [], []
        for start in range(0, len(shifts), batch_size):
            moved = torch.cat([movement.move(placed, shift) for shift in shifts[start : start + batch_size]])
            logits = call_model(function, moved, lambda at=index: f"on image {at}, for an example")
            share, answer = logits.softmax(dim=1).max(dim=1)
            answers += answer.tolist()
            shares += [round(one, 4) for one in share.tolist()]
        label = None if responses.labels is None else int(responses.labels[index])
        height, width = placed.shape[2:]
        image, channels = encode_levels(placed[0]), 3 if placed.shape[1] == 3 else 1
        examples.append(
            Example(movement.mode, index, label, image, height, width, channels, shifts, tuple(answers), tuple(shares))
        )
    return tuple(examples)
