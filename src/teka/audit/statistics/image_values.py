"""What each image says at each shift, as the tables that are averaged."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.errors import wrong_value


def take_common(responses: Sequence[Responses]) -> list[Responses]:
    """The responses of several models at the shifts that are complete for all of them.

    Args:
        responses: Responses to the same images, moved alike.

    Raises:
        ValueError: The zero shift is not complete for all.
    """
    complete = torch.stack([each.complete for each in responses]).all(dim=0)
    return [replace(each, evaluated=each.evaluated & complete[:, None]).take_complete() for each in responses]


def check_same_images(argument: str, first: Responses, other: Responses) -> None:
    """Refuse responses to other images than the first, or to images that were moved otherwise.

    Args:
        argument: The argument that gave the other responses.
        first: Responses.
        other: Responses that should be to the same images.

    Raises:
        ValueError: Another movement, set of shifts, number of images, or labels.
    """
    for name, mine, expected in (
        ("movement", other.movement, first.movement),
        ("shifts", other.shifts, first.shifts),
        ("num_images", other.num_images, first.num_images),
    ):
        if mine != expected:
            raise wrong_value(f"{argument}.{name}", mine, f"that of the first responses, {expected!r}")
    if (
        first.labels is not None
        and other.labels is not None
        and not torch.equal(first.labels.to(torch.int64), other.labels.to(torch.int64))
    ):
        raise wrong_value(f"{argument}.labels", "others", "those of the first responses: the same images in one order")


def agreement(responses: Responses) -> Bool[Tensor, "shifts images"]:
    """Whether each image is answered as it is unmoved.

    Args:
        responses: Responses with predictions, complete at every shift.
    """
    assert responses.predictions is not None
    return responses.predictions == responses.predictions[responses.zero]


def moved_rows(responses: Responses) -> list[int]:
    """Indices of all shifts but zero."""
    return [row for row in range(len(responses.shifts)) if row != responses.zero]


def is_decided(responses: Responses) -> bool:
    """Whether every image was answered wrongly at some shift, or evaluated at all of them.

    Args:
        responses: Responses with predictions and labels, as they were measured.
    """
    return bool((responses.evaluated.all(dim=0) | _was_wrong(responses)).all())


def right_at_every_shift(responses: Responses) -> Bool[Tensor, " images"]:
    """Whether each image is answered rightly at every shift.

    An image that was answered wrongly once is decided without its other shifts. Where all images are decided, the
    answer is for all shifts; else for the shifts that are complete.

    Args:
        responses: Responses with predictions and labels, as they were measured.
    """
    assert responses.correct is not None
    return ~_was_wrong(responses) if is_decided(responses) else responses.correct[responses.complete].all(dim=0)


def errors(
    responses: Responses,
) -> tuple[Float[Tensor, "shifts images"], Float[Tensor, "shifts images"]] | None:
    """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image; None where an error has no norm to be compared with.

    Args:
        responses: Responses, complete at every shift.
    """
    error, norm = responses.error_squared.to(torch.float64), responses.norm_squared.to(torch.float64)
    is_empty = norm.sum(dim=1) == 0
    if bool((is_empty & (error.sum(dim=1) > 0)).any()):
        return None
    # An output that is zero everywhere and stays so has no error.
    return error, torch.where(is_empty[:, None], 1.0, norm)


def _was_wrong(responses: Responses) -> Bool[Tensor, " images"]:
    assert responses.correct is not None
    return (responses.evaluated & ~responses.correct).any(dim=0)
