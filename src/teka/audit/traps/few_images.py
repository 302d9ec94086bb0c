"""The trap of too few images for what the numbers seem to say."""

from teka.audit.traps.trap import Trap
from teka.audit.wilson import wilson_interval

POINTS = 0.05  # an interval wider than ± that hides what most shifts do


def few_images(num_images: int, confidence: float) -> tuple[Trap, ...]:
    """Whether an accuracy of so many images is known to five points only, or worse.

    Args:
        num_images: Number of images.
        confidence: Confidence of the intervals.
    """
    lower, upper = wilson_interval(round(0.9 * num_images), num_images, confidence)
    if upper - lower <= 2 * POINTS:
        return ()
    message = (
        f"With {num_images} images an accuracy of about 90 % is known from {lower:.1%} to {upper:.1%}, so smaller "
        "differences between shifts, or between models, may be chance."
    )
    return (Trap("too few images", "limits", message),)
